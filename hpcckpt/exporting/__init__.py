"""A checkpoint as one file for other programs: written piece by piece, whole or not at all."""
