"""`Checkpoint`: TensorFlow's, which restores our checkpoints too."""

from __future__ import annotations

import os
import weakref
from pathlib import Path
from typing import Any

import tensorflow as tf

from hpcckpt import layout
from hpcckpt.checkpointer import Checkpointer
from hpcckpt.run import Restored
from hpcckpt.tensorflow.state import be_lenient, last_status

_COMMS: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
"""The ranks of a checkpoint; not an attribute of it, which TensorFlow would track."""


class Checkpoint(tf.train.Checkpoint):  # type: ignore[misc]  # TensorFlow has no types
    """What ``tf.train.Checkpoint`` is, and ``restore(manager.latest_checkpoint)`` works with our manager's too.

    `restore` and `read` of a checkpoint of ours are Collective; what else it does is TensorFlow's.

    Parameters
    ----------
    root : object, optional
        As TensorFlow's has it.
    comm : mpi4py communicator, optional
        The ranks that restore together; ``None`` means those of the `CheckpointManager` that it is handed to, if that
        has some, else MPI.COMM_WORLD when launched under MPI.
    **kwargs
        What is tracked, by name.
    """

    def __init__(self, root: Any = None, *, comm: Any = None, **kwargs: Any) -> None:
        super().__init__(root, **kwargs)
        assign_comm(self, comm)

    def read(self, save_path: Any, options: Any = None) -> Any:
        """Restore a checkpoint, ours or TensorFlow's; ``restore`` calls this. Collective.

        Parameters
        ----------
        save_path : path_like
            A step directory, or the prefix of a checkpoint that TensorFlow wrote.
        options : tf.train.CheckpointOptions, optional
            For TensorFlow's.

        Returns
        -------
        CheckpointLoadStatus
            TensorFlow's own.

        Raises
        ------
        StepNotFoundError, CorruptError, StateMismatchError
            As `Checkpointer.restore` does.
        """
        if is_step(save_path):
            be_lenient(self)
            restore_from(self, save_path, comm_of(self))
            return last_status(self)
        return super().read(save_path, options)


def assign_comm(checkpoint: Any, comm: Any) -> None:
    """Say which ranks restore a checkpoint together, if it was not said before. Independent."""
    if comm is not None and comm_of(checkpoint) is None:
        _COMMS[checkpoint] = comm


def comm_of(checkpoint: Any) -> Any:
    """Return the communicator that a checkpoint was given, or ``None``. Independent."""
    return _COMMS.get(checkpoint)


def is_step(save_path: Any) -> bool:
    """Say whether a path is that of a step of ours, by its name. Independent."""
    return isinstance(save_path, str | os.PathLike) and layout.parse_step(Path(save_path).name) is not None


def restore_from(root: Any, save_path: str | os.PathLike[str], comm: Any = None) -> Restored:
    """Restore a step of any directory. Collective."""
    path = Path(os.path.abspath(save_path))
    with Checkpointer(path.parent, comm) as other:
        return other.restore(root, layout.parse_step(path.name))
