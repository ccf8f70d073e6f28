"""Parallel, atomic, verified, elastic checkpoints for MPI-parallel training.

Importing this package starts nothing and loads none of mpi4py, tensorflow, h5py or the native
extension; public names are loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcckpt._version import __version__
from hpcckpt.lazy import attach

if TYPE_CHECKING:
    from hpcckpt import errors, horovod, interval, keras, lms, plugins, preemption, tensorflow, tmci, torch
    from hpcckpt.checkpoint_info import CheckpointInfo, info
    from hpcckpt.checkpointer import Checkpointer, PendingSave, Restored, SavedStep
    from hpcckpt.config import Best
    from hpcckpt.discovery import latest_checkpoint
    from hpcckpt.exporting.exporter import export_checkpoint
    from hpcckpt.importing.importer import import_checkpoint
    from hpcckpt.keras.levels import enable_exact_resume
    from hpcckpt.loading import load
    from hpcckpt.snapshot import PerRank, RootOnly, Sharded

_HOME = {
    "Best": "config",
    "CheckpointInfo": "checkpoint_info",
    "Checkpointer": "checkpointer",
    "PendingSave": "checkpointer",
    "PerRank": "snapshot",
    "Restored": "checkpointer",
    "RootOnly": "snapshot",
    "SavedStep": "checkpointer",
    "Sharded": "snapshot",
    "enable_exact_resume": "keras.levels",
    "export_checkpoint": "exporting.exporter",
    "info": "checkpoint_info",
    "import_checkpoint": "importing.importer",
    "latest_checkpoint": "discovery",
    "load": "loading",
}
_ROOMS = {"errors", "horovod", "interval", "keras", "lms", "plugins", "preemption", "tensorflow", "tmci", "torch"}

__all__ = [
    "Best",
    "CheckpointInfo",
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
    "info",
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

__getattr__, __dir__ = attach(__name__, __all__, _HOME, _ROOMS)
