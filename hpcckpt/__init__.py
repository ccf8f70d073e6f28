"""Parallel, atomic, verified, elastic checkpoints for MPI-parallel training.

Importing this package starts nothing and loads none of mpi4py, tensorflow, h5py or the native
extension; public names are loaded on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from hpcckpt._version import __version__

if TYPE_CHECKING:
    from hpcckpt import errors, keras
    from hpcckpt.checkpointer import Checkpointer, PendingSave, Restored, SavedStep
    from hpcckpt.config import Best
    from hpcckpt.discovery import latest_checkpoint
    from hpcckpt.loading import load
    from hpcckpt.snapshot import PerRank, RootOnly, Sharded

_HOME = {
    "Best": "hpcckpt.config",
    "Checkpointer": "hpcckpt.checkpointer",
    "PendingSave": "hpcckpt.checkpointer",
    "PerRank": "hpcckpt.snapshot",
    "Restored": "hpcckpt.checkpointer",
    "RootOnly": "hpcckpt.snapshot",
    "SavedStep": "hpcckpt.checkpointer",
    "Sharded": "hpcckpt.snapshot",
    "latest_checkpoint": "hpcckpt.discovery",
    "load": "hpcckpt.loading",
}
_ROOMS = {"errors", "keras"}

__all__ = [
    "Best",
    "Checkpointer",
    "PendingSave",
    "PerRank",
    "Restored",
    "RootOnly",
    "SavedStep",
    "Sharded",
    "__version__",
    "errors",
    "keras",
    "latest_checkpoint",
    "load",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    if name in _ROOMS:
        return importlib.import_module(f"hpcckpt.{name}")
    raise AttributeError(f"module 'hpcckpt' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
