"""TensorFlow shell: all that ``tf.train.Checkpoint`` can track, in steps that are atomic, verified and parallel.

Importing this package loads TensorFlow only when a name is used.

`Checkpoint` and `CheckpointManager` have the names and the behaviour of TensorFlow's own.  A `hpcckpt.Checkpointer`
takes the same things as a state, or as a part of one: ``tf.train.Checkpoint``, ``tf.Module``, iterators of ``tf.data``,
generators, tables.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcckpt.core.lazy import attach

if TYPE_CHECKING:
    from hpcckpt.tensorflow.checkpoint import Checkpoint
    from hpcckpt.tensorflow.manager import CheckpointManager
    from hpcckpt.tensorflow.state import last_status
    from hpcckpt.tensorflow.tracked_streams import random_streams

_HOME = {
    "Checkpoint": "checkpoint",
    "CheckpointManager": "manager",
    "last_status": "state",
    "random_streams": "tracked_streams",
}

__all__ = ["Checkpoint", "CheckpointManager", "last_status", "random_streams"]

__getattr__, __dir__ = attach(__name__, __all__, _HOME)
