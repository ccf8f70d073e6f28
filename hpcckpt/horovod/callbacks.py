"""The callback with which all ranks of Horovod start equal: restored, or with the initial state of one rank."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Literal

from hpcckpt.core.std_streams import write_wrapped
from hpcckpt.errors import OptionError
from hpcckpt.horovod.ranks import communicator, ranks_of
from hpcckpt.horovod.replicas import broadcast_state, check_equal
from hpcckpt.keras.callbacks.backup_and_restore import BackupAndRestore
from hpcckpt.keras.callbacks.fit_backup import SaveSchedule
from hpcckpt.keras.log_lines import equal_line

__all__ = ["RestoreCallback"]


class RestoreCallback(BackupAndRestore):
    """Restore on all ranks, before the first batch, and verify that they are equal. Collective.

    It replaces ``hvd.callbacks.BroadcastGlobalVariablesCallback``, and loading weights on rank 0. Horovod's callback
    broadcasts *after* the first batch, so the first step sums gradients of different models; and it never broadcasts
    the learning rate, so a resumed run silently diverges. This callback, after every ``on_train_begin`` and before the
    first batch,

    1. restores the newest intact step of the run directory on every rank: weights, optimizer, learning rate, loss
       scale, callbacks, random streams, epoch, batch and position in the data;
    2. or, if nothing was saved yet, broadcasts the initial state of `root_rank`: all of it, learning rate included;
    3. compares checksums of all tensors that must be equal, and ends the run if one differs, naming it.

    With `save_freq` or another of `BackupAndRestore`'s scheduling options, it saves too; else it only restores what
    such a callback wrote. Create it identically on all ranks of the process set.

    Parameters
    ----------
    directory : path_like
        The run directory.
    save_freq : {"epoch"} or int or False
        Save after each epoch, or every N batches; by default never.
    root_rank : int, optional
        The rank whose initial state is broadcast; by default the first rank of the process set.
    process_set : hvd.ProcessSet, optional
        The ranks that train this model together; by default all of Horovod's.
    check_every : int
        Compare all ranks again every N batches; 0 never.
    **options
        All other options of `hpcckpt.keras.BackupAndRestore` except `comm`; `delete_checkpoint` is off by default.

    Raises
    ------
    CodeError
        If Horovod is not initialized.
    OptionError
        If an option is invalid, or this rank is not in the process set.
    ReplicaMismatchError
        By ``fit``: on all ranks, naming the first tensor that differs.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        save_freq: Literal["epoch", False] | int = False,
        *,
        root_rank: int | None = None,
        process_set: Any = None,
        check_every: int = 0,
        **options: Any,
    ) -> None:
        if "comm" in options:
            raise OptionError("comm: Horovod's ranks are taken; choose some of them with process_set")
        if check_every < 0:
            raise OptionError(f"check_every: {check_every} – a number of batches, or 0 for never")
        if root_rank is not None and root_rank not in ranks_of(process_set):
            raise OptionError(f"root_rank: {root_rank} – one of Horovod's ranks {ranks_of(process_set)}")
        saves = bool(save_freq) or _SCHEDULE_OPTIONS & {name for name, value in options.items() if value}
        chosen = {"delete_checkpoint": False, **options}
        self._ranks = communicator(process_set)
        super().__init__(directory, save_freq if saves else "epoch", comm=self._ranks, **chosen)
        if not saves:
            self.save_freq, self._schedule = False, SaveSchedule(epochs=False)
        self._root_rank, self._process_set, self._check_every = root_rank, process_set, check_every
        self._n_unchecked = 0

    def begin_training(self, logs: Mapping[str, Any] | None = None) -> None:
        """Restore or broadcast, and verify that all ranks start equal. Collective."""
        super().begin_training(logs)
        if self.restored is None:
            broadcast_state(self._shared(), self._root_rank, process_set=self._process_set, comm=self._ranks)
        n_equal = self._check()
        if self.verbose and self._ranks.is_root:
            how = "restored" if self.restored is not None else "broadcast"
            write_wrapped(equal_line(n_equal, how, self._ranks.size))

    def end_batch(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Save, and compare ranks, if it is time. Collective."""
        self._n_unchecked += 1
        if self._check_every and self._n_unchecked >= self._check_every:
            self._check()
        super().end_batch(batch, logs)

    def _check(self) -> int:
        self._n_unchecked = 0
        return check_equal(self._shared(), comm=self._ranks)

    def _shared(self) -> dict[str, Any]:
        """Return the model and what the program gave as ``state=``, by the names that they have in a checkpoint."""
        return {"model": self.model, **self._content.more}


_SCHEDULE_OPTIONS = {"every_n_batches", "every_n_minutes", "save_before_preemption"}
