"""The callback that writes what becomes of a cycle into the run directory, on root."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from keras.callbacks import Callback, History

from hpcckpt.collective.communicator import Communicator
from hpcckpt.core.results import SavedStep
from hpcckpt.keras.callbacks.backup_and_restore import plain_metrics
from hpcckpt.train.callbacks.backup_callback import BackupCallback
from hpcckpt.train.run.run_directory import Row, TrainingDirectory, metrics_of

__all__ = ["Recording", "history_of", "read"]


class Recording(Callback):  # type: ignore[misc]  # Keras has no types
    """Writes a row for each epoch, and a log entry for each committed step. Root only.

    Parameters
    ----------
    directory : TrainingDirectory
        Where to.
    cycle : int
        Number of the cycle, from 1.
    backup : BackupCallback
        Knows the position of the training.
    """

    def __init__(self, directory: TrainingDirectory, cycle: int, backup: BackupCallback) -> None:
        super().__init__()
        self._directory, self._cycle, self._backup = directory, cycle, backup
        self._has_gone_back = False
        self._began = 0.0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Remove records of what is trained again, and take the time."""
        del epoch, logs
        self._go_back()
        self._began = time.monotonic()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Write the row."""
        seconds = time.monotonic() - self._began
        self._directory.add(Row(self._cycle, epoch + 1, self._backup.step, seconds, plain_metrics(logs or {})))

    def on_train_end(self, logs: Any = None) -> None:
        """Take out what is trained again, if nothing was trained."""
        del logs
        self._go_back()

    def on_commit(self, saved: SavedStep, epoch: int) -> None:
        """Write what was saved."""
        self._directory.log(
            "saved",
            cycle=self._cycle,
            step=saved.step,
            epochs=epoch,
            bytes=saved.nbytes,
            seconds=round(saved.seconds, 4),
            stall_seconds=round(saved.stall_seconds, 4),
            files=saved.files,
            backend=saved.backend,
            warnings=list(saved.warnings),
        )

    def _go_back(self) -> None:
        """Start after the restored epoch, which is known before the first epoch."""
        if self._has_gone_back:
            return
        self._has_gone_back = True
        backup, restored = self._backup, self._backup.restored
        if restored is None and self._has_saved():
            self._directory.keep_records()
        self._directory.go_back(self._cycle, backup.epoch, backup.step)
        if restored is not None:
            place = {"epochs": backup.epoch, "batch": backup.batch, "step": backup.step}
            self._directory.log("resumed", cycle=self._cycle, **place, ranks_before=restored.n_ranks)
        else:
            self._directory.log("cycle", cycle=self._cycle)

    def _has_saved(self) -> bool:
        """Return True if the log records checkpoints of this cycle to resume from: they have been deleted."""
        return any(
            entry.get("event") in {"saved", "complete"} and entry.get("cycle") == self._cycle
            for entry in self._directory.entries()
        )


# -- histories of earlier cycles ------------------------------------------------------------------


def read(directory: TrainingDirectory, comm: Communicator, n_cycles: int) -> list[History]:
    """Return the history of each cycle. Collective."""
    rows = comm.on_root("read metrics", directory.rows)
    return [history_of([row for row in rows if row.cycle == number + 1]) for number in range(n_cycles)]


def history_of(rows: Sequence[Row]) -> History:
    """Return epochs and metrics as ``fit`` would. Pure."""
    history = History()
    history.epoch = [row.epoch - 1 for row in rows]
    history.history = metrics_of(rows)
    return history
