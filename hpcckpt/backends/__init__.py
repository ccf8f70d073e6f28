"""Storage backends: the contract, the registry, and the built-in ones."""
