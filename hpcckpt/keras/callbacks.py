"""Keras callbacks. Every rank uses them alike: what they do is collective."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from keras.callbacks import Callback

from hpcckpt.checkpointer import Checkpointer
from hpcckpt.collective.communicator import as_communicator
from hpcckpt.config import Best
from hpcckpt.discovery import pins, scan, step_numbers
from hpcckpt.errors import OptionError
from hpcckpt.keras.lines import resume_line, saved_line, write_line
from hpcckpt.keras.position import DataPosition, Position, begin_at, forget
from hpcckpt.lock import RunLock
from hpcckpt.retention import retire
from hpcckpt.run import Restored
from hpcckpt.snapshot import flatten

__all__ = ["BackupAndRestore"]


class BackupAndRestore(Callback):  # type: ignore[misc]  # Keras has no types
    """Back up the training, and go on from the newest backup after an interruption. Collective.

    Like ``keras.callbacks.BackupAndRestore``, with these differences: it works on any number of MPI
    ranks, and on another number after a restart; every rank restores, before the first batch, weights,
    optimizer and learning rate; a backup is atomic and verified, and `max_to_keep` of them are kept.

    Put it behind callbacks that change the logs of an epoch (Horovod's ``MetricAverageCallback``): it
    saves at the end of an epoch, after validation, with the metrics it sees there.

    Parameters
    ----------
    backup_dir : path_like
        The run directory; every run needs its own.
    save_freq : {"epoch"} or int or False
        Save after each epoch, or every so many batches instead.
    delete_checkpoint : bool
        Delete the backups when training ends without an error.
    every_n_batches : int, optional
        Save every so many batches too, counted over epochs and restarts.
    comm : mpi4py communicator, optional
        The ranks that train together; ``None`` means MPI.COMM_WORLD when launched under MPI.
    max_to_keep : int or None
        How many backups are kept.
    keep_best : Best or str, optional
        Keep the best by a metric besides, such as ``"val_loss"``.
    backend : str
        Storage backend.
    verbose : int
        0 is silent; 1 writes a line on root for each save and restore.
    data : DataPosition, optional
        Input pipeline that knows its position, saved and restored with the model. Without it a run
        that resumes within an epoch counts the batches done, but the pipeline begins its epoch
        anew: data may be seen twice.

    Attributes
    ----------
    restored : Restored or None
        What the last ``fit`` began with; ``None`` if there was no backup.
    epoch, batch, step : int
        Epochs done, batches done in the current one, batches done in all.

    Raises
    ------
    OptionError
        If nothing would ever be saved, or an option makes no sense.
    StateError
        By ``fit``, if the model is not built: build it first, so that it can be restored before its first batch.
    """

    def __init__(
        self,
        backup_dir: str | os.PathLike[str],
        save_freq: Literal["epoch", False] | int = "epoch",
        delete_checkpoint: bool = True,
        *,
        every_n_batches: int | None = None,
        comm: Any = None,
        max_to_keep: int | None = 3,
        keep_best: Best | str | None = None,
        backend: str = "rankfile",
        verbose: int = 1,
        data: DataPosition | None = None,
    ) -> None:
        super().__init__()
        self._supports_tf_logs = True  # Keras 2.15: no copy of the logs to the host after each batch
        self.save_freq = save_freq
        self.delete_checkpoint = delete_checkpoint
        self.verbose = verbose
        self.data = data
        self.restored: Restored | None = None
        self.epoch = self.batch = self.step = 0
        self._backup_dir = backup_dir
        self._every = _batch_interval(save_freq, every_n_batches)
        self._options = {"backend": backend, "max_to_keep": max_to_keep, "keep_best": keep_best, "on_newer": "aside"}
        self._comm = comm
        self._checkpointer: Checkpointer | None = None
        self._resumed = Position()
        self._saved_step: int | None = None

    @property
    def backup_dir(self) -> str:
        """The run directory."""
        return os.fspath(self._backup_dir)

    # -- what Keras calls ------------------------------------------------------------------------

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """Restore the newest backup on all ranks, and tell Keras where to begin. Collective."""
        del logs
        self.restored = self._restore()
        self._resumed = Position() if self.restored is None else self._go_on(self.restored)
        self.epoch, self.batch, self.step = self._resumed.epoch, self._resumed.batch, self._resumed.step
        self._saved_step = None if self.restored is None else self.restored.step

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Count from here. Independent."""
        del logs
        self.epoch = epoch
        self.batch = self._resumed.batch if self.restored and epoch == self._resumed.epoch else 0

    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Save if a multiple of `every_n_batches` was passed. Collective."""
        del logs
        n_new = batch + 1 - self.batch
        if n_new <= 0:  # Keras 3 lets the batches before the resumed one pass
            return
        self.batch, self.step = self.batch + n_new, self.step + n_new
        if self.data is not None:
            self.data.advance(n_new)
        is_due = self._every is not None and self.step // self._every > (self.step - n_new) // self._every
        if is_due and not (self.save_freq == "epoch" and self.batch == self.params.get("steps")):
            self._save()

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Save, with the metrics of the epoch. Collective."""
        self.epoch, self.batch = epoch + 1, 0
        if self.save_freq == "epoch":
            self._save(_plain_metrics(logs or {}))

    def on_train_end(self, logs: Mapping[str, Any] | None = None) -> None:
        """Delete the backups, if so asked, and give back the run directory. Collective."""
        del logs
        forget(self.model)
        self.close()
        if self.delete_checkpoint:
            comm = as_communicator(self._comm)
            comm.on_root("delete backups", lambda: _delete_all(Path(self.backup_dir)))
            comm.free()

    # -- what stands behind it -------------------------------------------------------------------

    def close(self) -> None:
        """Give back the run directory; needed only if a ``fit`` that failed is not tried again. Collective."""
        if self._checkpointer is not None:
            self._checkpointer.close()
            self._checkpointer = None

    def _open(self) -> Checkpointer:
        if self._checkpointer is None:
            self._checkpointer = Checkpointer(self.backup_dir, self._comm, **self._options)  # type: ignore[arg-type]
        return self._checkpointer

    def _state(self) -> dict[str, Any]:
        return {"model": self.model} | ({"data": self.data} if self.data is not None else {})

    def _restore(self) -> Restored | None:
        """Restore the newest good backup; ``None`` if none was ever made, an error if all are damaged. Collective.

        A state that could not be restored is refused now, not when the run comes back from a kill.
        """
        checkpointer = self._open()
        checkpointer.comm.agree("fit: read state", lambda: flatten(self._state()))
        if not checkpointer.comm.on_root("look for backups", lambda: step_numbers(checkpointer.directory)):
            return None
        return checkpointer.restore(self._state())

    def _save(self, metrics: Mapping[str, float] | None = None) -> None:
        """Save this step; at the end of an epoch maybe in place of one saved after its last batch. Collective."""
        objects = {"epoch": self.epoch, "batch": self.batch, "step": self.step, "train_counter": self._counter(None)}
        overwrite = self.step == self._saved_step
        checkpointer = self._open()
        saved = checkpointer.save(
            self.step, self._state(), metrics=metrics, objects=objects, overwrite=overwrite
        ).result()
        self._saved_step = saved.step
        self._say(saved_line(saved, self.epoch), *saved.warnings)

    def _go_on(self, restored: Restored) -> Position:
        """Return where to begin, having told Keras. Independent."""
        known = {key: int(restored.objects.get(key, 0)) for key in ("epoch", "batch", "step")}
        n_ranks = self._open().comm.size
        position = Position(**known).scaled(restored.n_ranks, n_ranks).within(self.params.get("steps"))
        if self.data is not None:
            position = Position(self.data.epoch, self.data.batch, position.step)
        begin_at(self.model, position)
        self._counter(restored.objects.get("train_counter"))
        iterator = "exact" if self.data is not None else "none"
        line = resume_line(restored, position.epoch, position.batch, n_ranks, iterator)
        self._say(line, *restored.warnings)
        return position

    def _counter(self, value: int | None) -> int | None:
        """Return Keras 2.15's count of batches, which TensorBoard draws by; set it first if `value` is given."""
        counter = getattr(self.model, "_train_counter", None)
        if counter is None:
            return None
        if value is not None:
            counter.assign(value)
        return int(counter.numpy())

    def _say(self, line: str, *warnings: str) -> None:
        if self.verbose and self._open().comm.is_root:
            write_line(line)
            for warning in warnings:
                write_line(f"hpcckpt: warning: {warning}")


def _batch_interval(save_freq: object, every_n_batches: int | None) -> int | None:
    is_count = isinstance(save_freq, int) and not isinstance(save_freq, bool)
    interval = save_freq if is_count else every_n_batches
    if save_freq not in {"epoch", False} and not is_count:
        raise OptionError(f"save_freq: {save_freq!r} – one of 'epoch', a number of batches, False")
    if is_count and every_n_batches is not None:
        raise OptionError("save_freq and every_n_batches both give a number of batches: give one of them")
    if interval is None and save_freq is False:
        raise OptionError("save_freq is False and every_n_batches is not given: nothing would be saved")
    if interval is not None and (not isinstance(interval, int) or interval < 1):
        raise OptionError(f"every_n_batches: {interval!r} – a positive number of batches")
    return interval


def _plain_metrics(logs: Mapping[str, Any]) -> dict[str, float]:
    """Return what is a number in Keras' logs."""
    metrics: dict[str, float] = {}
    for name, value in logs.items():
        with contextlib.suppress(TypeError, ValueError):
            metrics[name] = float(value)
    return metrics


def _delete_all(directory: Path) -> None:
    """Retire all steps that nobody has pinned, oldest first, and the directory if nothing else is in it. Root only."""
    if not directory.is_dir():
        return
    with RunLock.take(directory):
        pinned = pins(directory)
        for info in scan(directory):
            if info.step not in pinned:
                retire(directory, info.path.name)
    with contextlib.suppress(OSError):
        directory.rmdir()
