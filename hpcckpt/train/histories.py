"""Keras' histories of all cycles, those of earlier jobs too, from the table of metrics."""

from __future__ import annotations

from collections.abc import Sequence

from keras.callbacks import History

from hpcckpt.collective.communicator import Communicator
from hpcckpt.train.run_directory import Row, RunDirectory

__all__ = ["history_of", "read"]


def read(directory: RunDirectory, comm: Communicator, n_cycles: int) -> list[History]:
    """Return the history of each cycle. Collective."""
    rows = comm.on_root("read metrics", directory.rows)
    return [history_of([row for row in rows if row.cycle == number + 1]) for number in range(n_cycles)]


def history_of(rows: Sequence[Row]) -> History:
    """Return epochs and metrics as ``fit`` would. Pure."""
    history = History()
    history.epoch = [row.epoch - 1 for row in rows]
    names = dict.fromkeys(name for row in rows for name in row.metrics)
    history.history = {name: [row.metrics[name] for row in rows if name in row.metrics] for name in names}
    return history
