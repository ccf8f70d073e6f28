"""Parallel, atomic, verified, elastic checkpoints for MPI-parallel training.

Importing this package starts nothing and loads none of mpi4py, tensorflow, h5py or the native
extension; public names are loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcckpt._version import __version__
from hpcckpt.core import moved
from hpcckpt.core.lazy import attach

if TYPE_CHECKING:
    from hpcckpt import errors, horovod, interval, keras, lms, plugins, preemption, tensorflow, tmci, torch
    from hpcckpt.checkpointer import Checkpointer, PendingSave, Restored, SavedStep
    from hpcckpt.core.options import Best
    from hpcckpt.keras.callbacks.reproducibility import enable_exact_resume
    from hpcckpt.restoring.checkpoint_info import CheckpointInfo, info
    from hpcckpt.restoring.reader import load
    from hpcckpt.rundir.discovery import latest_checkpoint
    from hpcckpt.state.tree import PerRank, RootOnly, Sharded
    from hpcckpt.tools.convert.export import export_checkpoint
    from hpcckpt.tools.convert.import_ import import_checkpoint

_HOME = {
    "Best": "core.options",
    "CheckpointInfo": "restoring.checkpoint_info",
    "Checkpointer": "checkpointer",
    "PendingSave": "checkpointer",
    "PerRank": "state.tree",
    "Restored": "checkpointer",
    "RootOnly": "state.tree",
    "SavedStep": "checkpointer",
    "Sharded": "state.tree",
    "enable_exact_resume": "keras.callbacks.reproducibility",
    "export_checkpoint": "tools.convert.export",
    "info": "restoring.checkpoint_info",
    "import_checkpoint": "tools.convert.import_",
    "latest_checkpoint": "rundir.discovery",
    "load": "restoring.reader",
}
_MODULES = {"errors", "horovod", "interval", "keras", "lms", "plugins", "preemption", "tensorflow", "tmci", "torch"}

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

__getattr__, __dir__ = attach(__name__, __all__, _HOME, {*_MODULES, *moved.IN_ROOT})
moved.install()
