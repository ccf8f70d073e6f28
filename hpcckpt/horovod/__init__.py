"""Horovod shell: trainings that restore on all ranks before their first batch, and elastic states that outlive a job.

Works with Horovod 0.28.1 and Keras 2.15 (stack A).  Importing this package loads neither; names are loaded
on first use.  Use everything here identically on all ranks of Horovod, or of one of its process sets.

`RestoreCallback`
    In place of ``hvd.callbacks.BroadcastGlobalVariablesCallback``: restores, or broadcasts, the whole training state,
    learning rate included, before the first batch, and verifies that all ranks start equal.
`DurableState`
    Around a state of ``hvd.elastic``: commits stay in memory, every N-th is also saved.
`load_model`
    A model from a checkpoint, its optimizer wrapped in ``hvd.DistributedOptimizer``.
`start`
    In place of ``hvd.init()`` where mpi4py communicates too: returns the communicator.
`broadcast_state`, `check_equal`
    What the callback does, for custom training loops.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcckpt.core.lazy import attach

if TYPE_CHECKING:
    from hpcckpt.horovod.callbacks import RestoreCallback
    from hpcckpt.horovod.elastic import DurableState
    from hpcckpt.horovod.models import load_model
    from hpcckpt.horovod.ranks import communicator, start
    from hpcckpt.horovod.replicas import broadcast_state, check_equal

_HOME = {
    "DurableState": "elastic",
    "RestoreCallback": "callbacks",
    "broadcast_state": "replicas",
    "check_equal": "replicas",
    "communicator": "ranks",
    "load_model": "models",
    "start": "ranks",
}

__all__ = ["DurableState", "RestoreCallback", "broadcast_state", "check_equal", "communicator", "load_model", "start"]

__getattr__, __dir__ = attach(__name__, __all__, _HOME)
