"""The one import of h5py, when it is needed: checkpoints are read without it."""

from __future__ import annotations

import functools
import importlib.util
from typing import Any

from hpcckpt.errors import BackendError

REMEDY = "install it: pip install 'hpcckpt[hdf5]'; checkpoints that are there can be read without it"


def is_installed() -> bool:
    """Return True if h5py is installed, without loading it. Independent."""
    return importlib.util.find_spec("h5py") is not None


@functools.cache
def load() -> Any:
    """Return h5py. Independent.

    Raises
    ------
    BackendError
        If it is not there, or cannot be loaded.
    """
    try:
        import h5py
    except ImportError as error:
        raise BackendError(f"backend 'hdf5' needs h5py to write ({error}); {REMEDY}") from error
    return h5py


def has_mpi() -> bool:
    """Return True if h5py was built with MPI. Independent."""
    return bool(load().get_config().mpi)


def without_locks() -> dict[str, Any]:
    """Return options to open a file without HDF5's own locks, which fail on many parallel file systems. Independent."""
    version = load().version.hdf5_version_tuple
    return {"locking": False} if version >= (1, 12, 1) or (1, 10, 7) <= version < (1, 12) else {}
