"""The callback that writes what becomes of a cycle into the run directory, on root, and looks there for HALT."""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any

from keras.callbacks import Callback

from hpcckpt import files, layout
from hpcckpt.keras.callbacks import plain_metrics
from hpcckpt.run import SavedStep
from hpcckpt.train.backups import Telling
from hpcckpt.train.run_directory import Row, RunDirectory

__all__ = ["Recording"]

HALT_EVERY_S = 5.0


class Recording(Callback):  # type: ignore[misc]  # Keras has no types
    """Writes a row for each epoch, and an entry of the log for each step that is committed. Root only.

    A file ``HALT`` in the run directory is handed on to that of the cycle, where the guard of its checkpoints looks.

    Parameters
    ----------
    directory : RunDirectory
        Where to.
    cycle : int
        Number of the cycle, from 1.
    backup : Telling
        Knows where the training stands.
    """

    def __init__(self, directory: RunDirectory, cycle: int, backup: Telling) -> None:
        super().__init__()
        self._supports_tf_logs = True  # Keras 2.15: no copy of the logs to the host after each batch
        self._directory, self._cycle, self._backup = directory, cycle, backup
        self._has_gone_back = False
        self._began = 0.0
        self._next_look = 0.0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Look for HALT, if it is time."""
        del batch, logs
        if time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + HALT_EVERY_S
            with contextlib.suppress(OSError):  # mostly, that there is none
                files.rename(self._directory.path / layout.HALT, os.path.join(self._backup.backup_dir, layout.HALT))

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Take out what is trained again, and look at the clock."""
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

    def hear(self, saved: SavedStep, epoch: int) -> None:
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
        """Begin behind what was restored; the training has found that out before its first epoch."""
        if self._has_gone_back:
            return
        self._has_gone_back = True
        backup, restored = self._backup, self._backup.restored
        if restored is None and self._tells_of_saved():
            self._directory.keep_records()
        self._directory.go_back(self._cycle, backup.epoch, backup.step)
        if restored is not None:
            place = {"epochs": backup.epoch, "batch": backup.batch, "step": backup.step}
            self._directory.log("resumed", cycle=self._cycle, **place, ranks_before=restored.n_ranks)
        else:
            self._directory.log("cycle", cycle=self._cycle)

    def _tells_of_saved(self) -> bool:
        """Say whether the log tells of checkpoints that would have been gone on from: they are gone."""
        return any(
            entry.get("event") in {"saved", "complete"} and entry.get("cycle") == self._cycle
            for entry in self._directory.entries()
        )
