"""TensorBoard, and other callbacks of Keras' that write files: on rank 0 only; and what saves cost, as curves."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from hpcckpt.core.results import SavedStep

__all__ = ["Board", "boards_of", "called_on"]

_WRITERS = frozenset(
    {"BackupAndRestore", "CSVLogger", "ModelCheckpoint", "ProgbarLogger", "RemoteMonitor", "TensorBoard"}
)
"""Callbacks of Keras' that several ranks would have write to the same place."""
FOLDER = "checkpoint"
"""Below TensorBoard's own directory: it reads but the newest file of one."""


def called_on(rank: int, callbacks: Sequence[Any]) -> list[Any]:
    """Return which of the configuration's callbacks a rank calls. Pure."""
    return [each for each in callbacks if rank == 0 or keras_name(each) not in _WRITERS]


def keras_name(callback: Any) -> str:
    """Return the Keras class of a callback; empty for hpcckpt's callbacks, which know about ranks."""
    classes = (cls for cls in type(callback).__mro__ if cls.__module__.partition(".")[0] in {"keras", "tensorflow"})
    return next((cls.__name__ for cls in classes), "") if not _is_ours(callback) else ""


def _is_ours(callback: Any) -> bool:
    return any(cls.__module__.partition(".")[0] == "hpcckpt" for cls in type(callback).__mro__)


def boards_of(callbacks: Sequence[Any]) -> list[Board]:
    """Return what draws our curves beside those of each TensorBoard among callbacks. Root only."""
    return [Board(each.log_dir) for each in callbacks if keras_name(each) == "TensorBoard"]


class Board:
    """Draws what saves cost, by the number of the step: ``checkpoint/stall_seconds``, ``…/bytes``, ``…/GBps``.

    Parameters
    ----------
    log_dir : path_like
        TensorBoard's directory.
    """

    def __init__(self, log_dir: str | os.PathLike[str]) -> None:
        self._directory = os.path.join(os.fspath(log_dir), FOLDER)
        self._writer: Any = None

    def on_commit(self, saved: SavedStep, epoch: int) -> None:
        """Draw a step that was committed. Independent."""
        import tensorflow as tf

        del epoch
        if self._writer is None:
            self._writer = tf.summary.create_file_writer(self._directory)
        rate = saved.nbytes / max(saved.seconds, 1e-9) / 1e9
        with self._writer.as_default(step=saved.step), tf.summary.record_if(True):
            tf.summary.scalar("checkpoint/stall_seconds", saved.stall_seconds)
            tf.summary.scalar("checkpoint/bytes", float(saved.nbytes))
            tf.summary.scalar("checkpoint/GBps", rate)
        self._writer.flush()

    def close(self) -> None:
        """Close the file. Independent."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()
