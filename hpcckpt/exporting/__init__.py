"""A checkpoint in other formats, for other programs: written beside its place, there whole or not at all."""
