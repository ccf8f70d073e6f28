"""The callback that backs a ``fit`` up. Use it identically on every rank: its methods are collective."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Any, Literal

from keras.callbacks import Callback

from hpcckpt import tiers
from hpcckpt.collective.communicator import Communicator
from hpcckpt.collective.connect import as_communicator
from hpcckpt.core import files
from hpcckpt.core.options import Best, Level
from hpcckpt.core.results import Restored, SavedStep
from hpcckpt.errors import OptionError
from hpcckpt.keras.callbacks.async_saves import Saves
from hpcckpt.keras.callbacks.fit_backup import FitBackup, SaveContent, SaveSchedule
from hpcckpt.keras.callbacks.fit_hooks import append_last, running_fit
from hpcckpt.keras.callbacks.training_state import check_more
from hpcckpt.keras.data.data_source import Mode, check_mode
from hpcckpt.keras.data.position import DataPosition
from hpcckpt.keras.log_lines import saved_line
from hpcckpt.keras.model.batch_norm import Policy, check_policy
from hpcckpt.rundir import damage_records, journal
from hpcckpt.rundir.discovery import scan
from hpcckpt.rundir.lock import RunLock
from hpcckpt.rundir.pins import pins_to_obey
from hpcckpt.rundir.workspace import Workspace

__all__ = ["BackupAndRestore"]

_SIDE_FILES = {journal.NAME, tiers.OWNER_FILE}
"""Ignored once the last step is deleted."""


class BackupAndRestore(Callback):  # type: ignore[misc]  # Keras has no types
    """Back up the training, and resume from the newest backup after an interruption. Collective.

    Like ``keras.callbacks.BackupAndRestore``, with these differences:

    * Before the first batch it restores everything that training depends on, on every rank, and training continues at
      the same batch (``docs/keras.md`` lists what is restored).
    * It works on any number of MPI ranks, and on another number after a restart.
    * A backup is atomic, verified, and written in the background. The previous backup is kept until the new one is
      committed.

    Its position among the callbacks does not matter: it restores and saves after all others.

    Parameters
    ----------
    backup_dir : path_like
        The run directory; every run needs its own.
    save_freq : {"epoch"} or int or False
        Save after each epoch, or every N batches instead.
    delete_checkpoint : bool
        Delete the backups when training ends without an error.
    save_before_preemption : bool or mapping
        Save, and end the program with exit code 75, on a signal, before the end of the walltime, or if a file ``HALT``
        requests it. A mapping has options for `hpcckpt.preemption.watch`.
    double_checkpoint : bool
        Keep at least the last two backups, as with Keras 3; `max_to_keep` may be larger.
    every_n_batches : int, optional
        Also save every N batches, counted over epochs and restarts.
    every_n_minutes : float or "auto", optional
        Also save after this time; ``"auto"`` computes it from the cost of saves and the frequency of failures.
    comm : mpi4py communicator, optional
        The ranks that train together; ``None`` means MPI.COMM_WORLD when launched under MPI.
    max_to_keep : int or None
        Number of backups to keep; ``None`` keeps all.
    keep_best : Best or str, optional
        Also keep the best backup by a metric, such as ``"val_loss"``.
    backend : str
        Storage backend.
    backend_options : mapping, optional
        Options of the backend.
    scratch : path_like, optional
        A faster directory, one that all ranks see or one on each node: backups are committed there, and drained to
        `backup_dir` while the training continues; see the page on tiers.
    scratch_bandwidth : float, optional
        Bytes per second that all ranks together may drain while the training continues.
    async_save : bool
        Whether training continues while a backup is written.
    verbose : int
        0 is silent; 1 writes a line on root for each save and restore, and about what a resume guarantees.
    data : DataPosition, optional
        Input pipeline that knows its position, saved and restored with the model.
    iterator : {"auto", "exact", "skip"}
        How a run that resumes within an epoch finds its position in data other than `data`. ``"exact"`` restores the
        position exactly, or raises an error. ``"skip"`` reads the batches before the position again, and drops them.
        ``"auto"`` is exact where that is possible, and skips elsewhere.
    batch_norm : {"rank0", "mean", "per-rank"}
        Which statistics of BatchNorm are saved: those of rank 0, their mean over the ranks, or those of each rank.
    state : mapping, optional
        More state to save and restore, by name: anything that `Checkpointer` accepts. Values that cannot be restored
        in place, such as numbers, are replaced in this dict.
    fork_from : path_like, optional
        A step, or a run directory, of another run, to start from if this run has no backup yet.

    Raises
    ------
    OptionError
        If nothing would ever be saved, or an option is invalid.
    StateError
        By ``fit``, if the model is not built, and cannot be built from the shapes of the data either.
    """

    def __init__(
        self,
        backup_dir: str | os.PathLike[str],
        save_freq: Literal["epoch", False] | int = "epoch",
        delete_checkpoint: bool = True,
        save_before_preemption: bool | Mapping[str, Any] = False,
        *,
        double_checkpoint: bool = False,
        every_n_batches: int | None = None,
        every_n_minutes: float | Literal["auto"] | None = None,
        comm: Any = None,
        max_to_keep: int | None = 3,
        keep_best: Best | str | None = None,
        backend: str = "rankfile",
        backend_options: Mapping[str, Any] | None = None,
        scratch: str | os.PathLike[str] | None = None,
        scratch_bandwidth: float | None = None,
        async_save: bool = True,
        verbose: int = 1,
        data: DataPosition | None = None,
        iterator: Mode = "auto",
        batch_norm: Policy = "rank0",
        state: Mapping[str, Any] | None = None,
        fork_from: str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__()
        if not backup_dir:
            raise OptionError("Empty `backup_dir` argument passed: give the directory of the run")
        self._supports_tf_logs = True  # Keras 2.15: no copy of the logs to the host after each batch
        self.save_freq = save_freq
        self.delete_checkpoint = delete_checkpoint
        self.verbose = verbose
        check_mode(iterator)
        check_policy(batch_norm)
        check_more(state or {})
        # the program's own dict: a restore replaces numbers and lists in it
        own = state if isinstance(state, MutableMapping) else dict(state or {})
        self._schedule = _schedule_of(save_freq, every_n_batches, every_n_minutes, save_before_preemption)
        fork = None if fork_from is None else Path(fork_from)
        self._content = SaveContent(data, iterator, batch_norm, own, fork)
        self._comm = comm
        kept = max(max_to_keep, 2) if double_checkpoint and max_to_keep is not None else max_to_keep
        self._saves = Saves(
            backup_dir,
            comm,
            self._committed,
            max_to_keep=kept,
            keep_best=keep_best,
            backend=backend,
            backend_options=backend_options,
            scratch=scratch,
            scratch_bandwidth=scratch_bandwidth,
            async_save=async_save,
        )
        self._scratch = scratch
        self._is_own_directory = not _is_empty_directory(Path(backup_dir))
        self._backup: FitBackup | None = None
        self._stands_last = False

    # -- where it is -----------------------------------------------------------------------------

    @property
    def backup_dir(self) -> str:
        """The run directory."""
        return self._saves.directory

    @property
    def data(self) -> DataPosition | None:
        """The input pipeline that knows its position."""
        return self._content.data

    @property
    def restored(self) -> Restored | None:
        """The checkpoint that the last ``fit`` began with; ``None`` if there was no backup."""
        return None if self._backup is None else self._backup.start.restored

    @property
    def epoch(self) -> int:
        """Epochs done."""
        return 0 if self._backup is None else self._backup.at.epoch

    @property
    def batch(self) -> int:
        """Batches done in the current epoch."""
        return 0 if self._backup is None else self._backup.at.batch

    @property
    def step(self) -> int:
        """Batches done in all, over all runs."""
        return 0 if self._backup is None else self._backup.at.step

    @property
    def level(self) -> Level:
        """What a resume of this run guarantees: ``exact`` or ``state``; known from the first batch on."""
        return "state" if self._backup is None else self._backup.level

    @property
    def reasons(self) -> list[str]:
        """The reasons why the level is not ``exact``."""
        return [] if self._backup is None else self._backup.reasons

    # -- what Keras calls; where its list of callbacks can be found, all is done at the end of that ----

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """Restore the newest backup on all ranks, and tell Keras where to begin. Collective."""
        if self._backup is not None:  # of a fit that failed
            self._backup.leave()
        fit = running_fit()
        self._backup = FitBackup(self, fit, self._saves, self._schedule, self._content)
        self._stands_last = fit.callbacks is not None
        if fit.callbacks is not None:
            append_last(self, fit.callbacks)
        else:
            self.begin_training(logs)

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Record the epoch that begins. Independent."""
        if not self._stands_last:
            self.begin_epoch(epoch, logs)

    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Save if it is time. Collective."""
        if not self._stands_last:
            self.end_batch(batch, logs)

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Save, with the metrics of the epoch. Collective."""
        if not self._stands_last:
            self.end_epoch(epoch, logs)

    def on_train_end(self, logs: Mapping[str, Any] | None = None) -> None:
        """Delete the backups if requested; release the run directory. Collective."""
        if not self._stands_last:
            self.end_training(logs)

    # -- what is done then -----------------------------------------------------------------------

    def begin_training(self, logs: Mapping[str, Any] | None = None) -> None:
        """Restore, and tell Keras where to begin. Collective."""
        del logs
        self._running.begin()

    def begin_epoch(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Record the epoch that begins. Independent."""
        del logs
        self._running.begin_epoch(epoch)

    def end_batch(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Save if it is time. Collective."""
        del logs
        self._running.end_batch(batch)

    def end_epoch(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Save if it is time. Collective."""
        self._running.end_epoch(epoch, plain_metrics(logs or {}))

    def end_training(self, logs: Mapping[str, Any] | None = None) -> None:
        """Finish, and delete the backups if requested. Collective."""
        del logs
        self._running.end()
        if self.delete_checkpoint:
            comm = as_communicator(self._comm)
            run = Path(os.path.abspath(self.backup_dir))
            if self._scratch is not None:
                _delete_scratch(comm, run, Path(os.path.abspath(self._scratch)))
            comm.on_root("delete backups", lambda: _delete_all(run, with_directory=self._is_own_directory))
            comm.free()

    def close(self) -> None:
        """Release the run directory. Collective.

        This is needed only if a ``fit`` that failed is not repeated.
        """
        if self._backup is not None:
            self._backup.leave()
        self._saves.close()

    @property
    def _running(self) -> FitBackup:
        assert self._backup is not None, "on_train_begin comes first"
        return self._backup

    def _committed(self, saved: SavedStep) -> None:
        """Report a step that is committed. Independent."""
        epoch = self._running.epochs.pop(saved.step, 0)
        if self.verbose:
            self._saves.print_lines(saved_line(saved, epoch), *self._running.remarks(saved))


def _schedule_of(
    save_freq: Any, every_n_batches: Any, every_n_minutes: Any, preemption: bool | Mapping[str, Any]
) -> SaveSchedule:
    is_count = isinstance(save_freq, int) and not isinstance(save_freq, bool)
    interval = save_freq if is_count else every_n_batches
    if save_freq not in {"epoch", False} and not is_count:
        raise OptionError(
            f"Invalid value for argument `save_freq`: {save_freq!r}; give 'epoch', a number of batches, or False"
        )
    if is_count and every_n_batches is not None:
        raise OptionError("save_freq and every_n_batches both give a number of batches: give one of them")
    if interval is not None and (not isinstance(interval, int) or interval < 1):
        raise OptionError(f"every_n_batches: {interval!r} – a positive number of batches")
    if interval is None and save_freq is False and every_n_minutes is None and not preemption:
        raise OptionError(
            "save_freq is False, and none of every_n_batches, every_n_minutes, save_before_preemption is given: "
            "nothing would be saved"
        )
    return SaveSchedule(save_freq == "epoch", interval, every_n_minutes, preemption)


def plain_metrics(logs: Mapping[str, Any]) -> dict[str, float]:
    """Return what is a number in Keras' logs."""
    metrics: dict[str, float] = {}
    for name, value in logs.items():
        with contextlib.suppress(TypeError, ValueError):
            metrics[name] = float(value)
    return metrics


def _delete_scratch(comm: Communicator, run: Path, scratch: Path) -> None:
    """Do so with the parts on scratch, on each node, of a run that is drained. Collective."""
    path, nodes = tiers.find_scratch(comm, comm.bcast(run), scratch)

    def delete() -> None:
        if comm.rank == nodes.leader_of(comm.rank):
            _delete_all(path)

    comm.agree("delete backups on scratch", delete)


def _is_empty_directory(path: Path) -> bool:
    """Return True for a directory that the program has made for the backups: it is not removed with them."""
    return path.is_dir() and not any(path.iterdir())


def _delete_all(directory: Path, *, with_directory: bool = True) -> None:
    """Retire all steps that are not pinned, oldest first, and the directory if no more is in it. Root only."""
    if not directory.is_dir():
        return
    with RunLock.take(directory):
        pinned = pins_to_obey(directory)
        for info in scan(directory):
            if info.step not in pinned:
                Workspace.at(directory).retire(info.path.name)
        damage_records.drop_stale(directory)
    with contextlib.suppress(OSError):
        if set(os.listdir(directory)) <= _SIDE_FILES:
            for name in _SIDE_FILES:
                files.unlink(directory / name)
        if with_directory:
            directory.rmdir()
