"""Parallel, atomic, verified, elastic checkpoints for MPI-parallel training.

Importing this package starts nothing and loads none of mpi4py, tensorflow, h5py or the native
extension; public names are loaded on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from hpcckpt._version import __version__

if TYPE_CHECKING:
    from hpcckpt import errors, horovod, interval, keras, lms, plugins, preemption, tensorflow, tmci, torch
    from hpcckpt.checkpointer import Checkpointer, PendingSave, Restored, SavedStep
    from hpcckpt.config import Best
    from hpcckpt.discovery import latest_checkpoint
    from hpcckpt.exporting.exporter import export_checkpoint
    from hpcckpt.importing.importer import import_checkpoint
    from hpcckpt.keras.levels import enable_exact_resume
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
    "enable_exact_resume": "hpcckpt.keras.levels",
    "export_checkpoint": "hpcckpt.exporting.exporter",
    "import_checkpoint": "hpcckpt.importing.importer",
    "latest_checkpoint": "hpcckpt.discovery",
    "load": "hpcckpt.loading",
}
_ROOMS = {"errors", "horovod", "interval", "keras", "lms", "plugins", "preemption", "tensorflow", "tmci", "torch"}

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
    "enable_exact_resume",
    "errors",
    "export_checkpoint",
    "horovod",
    "import_checkpoint",
    "interval",
    "keras",
    "latest_checkpoint",
    "lms",
    "load",
    "plugins",
    "preemption",
    "tensorflow",
    "tmci",
    "torch",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    if name in _ROOMS:
        return importlib.import_module(f"hpcckpt.{name}")
    raise AttributeError(f"module 'hpcckpt' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
