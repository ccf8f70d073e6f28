"""Reports of Large Model Support."""
