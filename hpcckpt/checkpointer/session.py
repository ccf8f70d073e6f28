"""What a checkpointer opens, and what is finished and closed with it or when the program ends."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field
from typing import NamedTuple

from hpcckpt.collective.communicator import Communicator
from hpcckpt.errors import CodeError, ForkedError
from hpcckpt.restoring.restore import RestoreSource
from hpcckpt.rundir.run_directory import RunDirectory
from hpcckpt.saving.save_queue import SaveQueue
from hpcckpt.tiers import ScratchTier

GRACE_S = 2.0
"""How long a rank whose program leaves a run waits for others that are not known to write the saves in flight."""
ERROR_GRACE_S = 0.5
"""The same before it raises that a rank has ended: under mpirun that rank ends the job a second later."""


class BlockEnd(NamedTuple):
    """The exception that ended the program's block: its class, its exit code, if it has one, and its text."""

    kind: str
    exit_code: int | None
    text: str

    def __str__(self) -> str:
        return f"left its Checkpointer block by {self.kind}{': ' if self.text else ''}{self.text[:200]}"


@dataclass(slots=True, eq=False, weakref_slot=True)
class Session:
    """An open run: its ranks, directories and saves.

    Attributes
    ----------
    comm : Communicator
        The ranks.
    rundir : RunDirectory
        Where saves commit steps: the run directory, or its directory on scratch.
    queue : SaveQueue
        The saves.
    source : RestoreSource
        Where steps are restored from.
    scratch_tier : ScratchTier or None
        The scratch tier, if saves go to scratch, with the drains to the run directory.
    pid : int
        The process that opened it; a forked child has a copy that it must not use.
    thread : int
        The thread that opened it.
    is_closed : bool
        Whether it may not be used any more.
    ended_by : BlockEnd or None
        The exception that ended the program's block, if one did.
    is_ending : bool
        Whether it is finished and released without its checkpointer, which may be collected meanwhile.
    """

    comm: Communicator
    rundir: RunDirectory
    queue: SaveQueue
    source: RestoreSource
    scratch_tier: ScratchTier | None = None
    pid: int = field(default_factory=os.getpid)
    thread: int = field(default_factory=threading.get_ident)
    is_closed: bool = False
    ended_by: BlockEnd | None = None
    is_ending: bool = False

    @property
    def is_forked(self) -> bool:
        """Whether this is the copy that a forked child has of its parent's session."""
        return os.getpid() != self.pid

    @property
    def is_draining(self) -> bool:
        """Whether a step is being drained, as far as known here."""
        return self.scratch_tier is not None and self.scratch_tier.drains.is_draining

    @property
    def is_saving(self) -> bool:
        """Whether a save is in flight whose outcome is not known here."""
        return any(not this.has_ended for this in self.queue.in_flight)

    @property
    def is_idle(self) -> bool:
        """Whether no save is in flight, and no step is left to be drained, as far as known here."""
        is_drained = self.scratch_tier is None or self.scratch_tier.drains.is_drained
        return is_drained and not (self.is_saving or self.is_draining)

    @property
    def is_calling(self) -> bool:
        """Whether a function is being called with a step."""
        tiers = () if self.scratch_tier is None else (self.scratch_tier.drains,)
        return any(each.listeners.is_calling for each in (self.queue, *tiers))

    @property
    def rundirs(self) -> tuple[RunDirectory, ...]:
        """The directories whose locks it may hold: first the run directory that steps are drained to, if they are."""
        tier = self.scratch_tier
        return (self.rundir,) if tier is None else (tier.persistent, self.rundir)

    def check_process(self) -> None:
        """Raise if this process is not the one that opened the session. Independent.

        Raises
        ------
        ForkedError
            In a forked child.
        """
        if self.is_forked:
            raise ForkedError(
                f"the checkpointer of {self.rundir.path} belongs to process {self.pid}, and this is process "
                f"{os.getpid()}, forked from it; create a new Checkpointer here, with another directory"
            )

    def check_caller(self) -> None:
        """Raise if a function that is called with each step calls the checkpointer. Independent.

        Raises
        ------
        CodeError
            There: other ranks may not do so at that moment.
        """
        if self.is_calling:
            raise CodeError(
                "a function that is called with each step may not call the checkpointer: do so after `save`"
            )

    def note_end(self, end: BlockEnd) -> None:
        """Note the exception that ended the program's block. Independent."""
        self.ended_by = end
        for rundir in self.rundirs:
            rundir.note_end()

    def let_saves_end(self, *, is_error_due: bool = False) -> None:
        """Let the saves in flight be committed, if other ranks do the same. Independent."""
        self.queue.begin_newest()
        self.queue.background.let_end(ERROR_GRACE_S if is_error_due else GRACE_S)

    def close(self) -> None:
        """Let it not be used any more, and give back the memory of its snapshots. Independent."""
        self.is_closed = True
        self.queue.arenas.close()

    def finish(self) -> None:
        """Wait for all saves and, also after a failure, for all drains. Collective."""
        self.queue.begin_newest()
        try:
            self.queue.finish()
        finally:
            if self.scratch_tier is not None:
                self.scratch_tier.drains.finish()
