"""The backup callbacks of a cycle, which also report each committed step to listeners."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hpcckpt.collective.communicator import Communicator
from hpcckpt.core.results import SavedStep
from hpcckpt.core.std_streams import write_wrapped
from hpcckpt.horovod.replicas import check_equal
from hpcckpt.keras.callbacks.backup_and_restore import BackupAndRestore
from hpcckpt.keras.log_lines import equal_line, saved_line
from hpcckpt.state.tree import flatten

__all__ = ["Backup", "BackupCallback", "MpiBackup", "broadcast"]

StepListener = Callable[[SavedStep, int], None]
"""Called with a committed step and the number of epochs done at it."""


class BackupCallback(BackupAndRestore):
    """Calls its listeners with each committed step, on every rank.

    Attributes
    ----------
    listeners : list of callable
        Called for each committed step.
    logs_steps : bool
        Whether root logs a line for each step.
    """

    listeners: Sequence[StepListener] = ()
    logs_steps = True

    @property
    def is_saving(self) -> bool:
        """Whether a save is in flight."""
        checkpointer = self._saves._checkpointer
        return checkpointer is not None and checkpointer.is_saving

    @property
    def is_restored(self) -> bool:
        """Whether the present or last training was restored from a checkpoint."""
        return self.restored is not None

    def _committed(self, saved: SavedStep) -> None:
        epoch = self._running.epochs.pop(saved.step, 0)
        lines = [saved_line(saved, epoch)] if self.logs_steps else []
        if self.verbose:
            self._saves.print_lines(*lines, *self._running.remarks(saved))
        for on_commit in self.listeners:
            on_commit(saved, epoch)


class Backup(BackupCallback):
    """For one rank."""


class MpiBackup(BackupCallback):
    """Of several ranks of MPI: those that were not restored begin with root's state, and all are compared."""

    def begin_training(self, logs: Mapping[str, Any] | None = None) -> None:
        """Restore or broadcast, and verify that all ranks start equal. Collective."""
        super().begin_training(logs)
        if not self.is_restored:
            broadcast({"model": self.model}, self._comm)
        n_equal = check_equal({"model": self.model}, comm=self._comm)
        if self.verbose and self._comm.is_root:
            how = "restored" if self.is_restored else "broadcast"
            write_wrapped(equal_line(n_equal, how, self._comm.size))


def broadcast(state: Any, comm: Communicator) -> None:
    """Give all ranks root's state; what each rank has for itself, such as random streams, stays. Collective.

    Raises
    ------
    CollectiveError
        If ranks do not hold the same tensors, or one cannot take a value.
    """
    tree = comm.agree("broadcast: read state", lambda: flatten(state))
    leaves = [leaf for leaf in tree.tensors.values() if leaf.declaration.spec.kind != "per-rank"]
    values = comm.bcast([(leaf.declaration.spec, leaf.read()) for leaf in leaves] if comm.is_root else None)

    def assign() -> None:
        for leaf, (spec, value) in zip(leaves, values, strict=True):
            if leaf.declaration.spec != spec:
                raise ValueError(f"{leaf.declaration.spec} here, {spec} on rank 0: build the same model on all ranks")
            leaf.assign(value)

    comm.agree("broadcast: assign", assign if not comm.is_root else lambda: None)
