"""`Checkpoint`: TensorFlow's, which restores our checkpoints too."""

from __future__ import annotations

import os
import weakref
from pathlib import Path
from typing import Any

import tensorflow as tf

from hpcckpt.checkpointer import Checkpointer
from hpcckpt.core.results import Restored
from hpcckpt.errors import OptionError
from hpcckpt.format import layout
from hpcckpt.rundir.discovery import step_numbers
from hpcckpt.tensorflow.state import be_lenient, last_status

_COMMS: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
"""The ranks of a checkpoint; not an attribute of it, which TensorFlow would track."""


class Checkpoint(tf.train.Checkpoint):  # type: ignore[misc]  # TensorFlow has no types
    """A ``tf.train.Checkpoint`` whose ``restore`` also reads hpcckpt's steps.

    `restore` and `read` of hpcckpt's checkpoints are Collective; everything else is TensorFlow's.

    Parameters
    ----------
    root : object, optional
        As in ``tf.train.Checkpoint``.
    comm : mpi4py communicator, optional
        The ranks that restore together; ``None`` means those of the `CheckpointManager` that it is passed to, if that
        has some, else MPI.COMM_WORLD when launched under MPI.
    **kwargs
        Tracked objects, by name.
    """

    def __init__(self, root: Any = None, *, comm: Any = None, **kwargs: Any) -> None:
        super().__init__(root, **kwargs)
        assign_comm(self, comm)

    def read(self, save_path: Any, options: Any = None) -> Any:
        """Restore a checkpoint, hpcckpt's or TensorFlow's; ``restore`` calls this. Collective.

        Parameters
        ----------
        save_path : path_like
            A step directory, or the prefix of a checkpoint that TensorFlow wrote.
        options : tf.train.CheckpointOptions, optional
            For checkpoints of TensorFlow.

        Returns
        -------
        CheckpointLoadStatus
            TensorFlow's own.

        Raises
        ------
        StepNotFoundError, CorruptError, StateMismatchError
            As `Checkpointer.restore` does.
        OptionError
            If `save_path` is a run directory, not a step of it. The message has the call that restores the newest step.
        """
        _refuse_run_directory(save_path)
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


def enable_steps(checkpoint: Any) -> None:
    """Make ``restore`` of one ``tf.train.Checkpoint`` read hpcckpt's steps too, as `Checkpoint` does. Independent."""
    if type(checkpoint) is tf.train.Checkpoint:
        checkpoint.__class__ = Checkpoint


def is_step(save_path: Any) -> bool:
    """Return True if a path, or what it links to, has the name of an hpcckpt step. Independent."""
    return (
        isinstance(save_path, str | os.PathLike)
        and layout.parse_step(Path(os.path.realpath(save_path)).name) is not None
    )


def restore_from(root: Any, save_path: str | os.PathLike[str], comm: Any = None) -> Restored:
    """Restore a step of any directory. Collective."""
    path = Path(os.path.realpath(save_path))
    with Checkpointer(path.parent, comm) as other:
        return other.restore(root, layout.parse_step(path.name))


def _refuse_run_directory(save_path: Any) -> None:
    """Raise for a run directory of hpcckpt, which TensorFlow would report as damaged data. Independent."""
    if isinstance(save_path, str | os.PathLike) and not is_step(save_path) and step_numbers(Path(save_path)):
        raise OptionError(
            f"{os.fspath(save_path)} is a run directory; restore its newest step with "
            f"checkpoint.restore(hpcckpt.latest_checkpoint({os.fspath(save_path)!r}))"
        )
