"""TensorFlow shell: all that ``tf.train.Checkpoint`` can track, in steps that are atomic, verified and parallel.

Importing this package loads TensorFlow only when a name is used.

`Checkpoint` and `CheckpointManager` have the names and the behaviour of TensorFlow's own.  A `hpcckpt.Checkpointer`
takes the same things as a state, or as a part of one: ``tf.train.Checkpoint``, ``tf.Module``, iterators of ``tf.data``,
generators, tables.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpcckpt.tensorflow.checkpoint import Checkpoint
    from hpcckpt.tensorflow.manager import CheckpointManager
    from hpcckpt.tensorflow.state import last_status
    from hpcckpt.tensorflow.streams import random_streams

_HOME = {
    "Checkpoint": "hpcckpt.tensorflow.checkpoint",
    "CheckpointManager": "hpcckpt.tensorflow.manager",
    "last_status": "hpcckpt.tensorflow.state",
    "random_streams": "hpcckpt.tensorflow.streams",
}

__all__ = ["Checkpoint", "CheckpointManager", "last_status", "random_streams"]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'hpcckpt.tensorflow' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
