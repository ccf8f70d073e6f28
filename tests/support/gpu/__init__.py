"""Checks on a GPU that need nothing but PyTorch and mpi4py, not even pytest."""
