"""The saves of one checkpointer, in order: plan, staging slots, saves in flight."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from hpcckpt.backends.base import Backend
from hpcckpt.backends.incremental import BlockRecords
from hpcckpt.collective.background import BackgroundTasks
from hpcckpt.collective.communicator import Communicator
from hpcckpt.collective.outcomes import Outcome
from hpcckpt.core.options import Options
from hpcckpt.core.plan import SaveJob, StagingSlot
from hpcckpt.core.results import SavedStep
from hpcckpt.errors import CollectiveError
from hpcckpt.native.arena import ArenaPool
from hpcckpt.rundir.commit import Staged
from hpcckpt.rundir.run_directory import RunDirectory
from hpcckpt.saving.pending import InFlightSave, Planned, Request, SaveOutcome, SaveState

_log = logging.getLogger("hpcckpt")
TASKS_PER_SAVE = 3
"""Collective tasks of one save: writing, writing again by a new plan, and the commit of the parts of each node."""


class Drains(Protocol):
    """What a save on scratch needs of the tier that its step is drained to."""

    @property
    def persistent(self) -> RunDirectory:
        """The run directory that steps are drained to."""

    def check_conflicts(self, step: int, *, overwrite: bool) -> None:
        """Raise if the step could not be committed there. Root only."""

    def newer_aside(self, step: int) -> AbstractContextManager[None]:
        """Move aside there what is newer than a run that went back, while the block commits the step. Root only."""

    def committed(self, step: int) -> None:
        """Keep a step that was committed on scratch until it is drained. Root only, or the leader of each node."""

    def start_drain(self, number: int, saved: SavedStep, job: SaveJob, *, overwrite: bool) -> object:
        """Start to drain a step; return what shows when it is over. Independent."""


class Listeners:
    """Functions that are called once with each step, even if an interrupt ends a call and it is repeated.

    Attributes
    ----------
    is_calling : bool
        Whether one of them is being called.
    """

    def __init__(self) -> None:
        self.is_calling = False
        self._functions: list[Callable[[SavedStep], None]] = []
        self._left: tuple[object, list[Callable[[SavedStep], None]]] = None, []

    def add(self, function: Callable[[SavedStep], None]) -> Callable[[], None]:
        """Add a function; return one that removes it. Independent."""
        functions = self._functions
        functions.append(function)
        return lambda: functions.remove(function) if function in functions else None

    def call(self, owner: object, step: SavedStep) -> None:
        """Call all functions with a step; if the owner's call is repeated, those that were not called. Independent.

        An exception of one is logged: the step is committed, and other ranks do not know of the exception.
        """
        if self._left[0] is not owner:
            self._left = owner, list(reversed(self._functions))
        while self._left[1]:
            function = self._left[1].pop()
            self.is_calling = True
            try:
                function(step)
            except Exception:  # noqa: BLE001 - of the program
                _log.exception("hpcckpt: a function that is called with each step failed at step %d", step.step)
            finally:
                self.is_calling = False


class SaveQueue:
    """The saves of one checkpointer, from the oldest in flight to the staging slots of those to come.

    Parameters
    ----------
    comm : Communicator
        The ranks.
    rundir : RunDirectory
        Where steps are committed.
    arenas : ArenaPool
        Memory for snapshots.

    Attributes
    ----------
    background : BackgroundTasks
        The collective tasks of the saves in flight.
    planned : Planned or None
        The save plan, until the state changes.
    slots : dict of int to StagingSlot
        The staging slots that root has prepared, by the number of the save.
    in_flight : list of InFlightSave
        Saves whose outcome was not returned or raised, the oldest first.
    n_saves : int
        The number of the next save.
    block_records : BlockRecords
        Which tensors did not change since the newest step.
    listeners : Listeners
        Called with each committed step, when this rank receives the outcome.
    drains : Drains or None
        If `rundir` is on scratch: the tier that steps are drained to.
    """

    def __init__(self, comm: Communicator, rundir: RunDirectory, arenas: ArenaPool) -> None:
        self.comm, self.rundir, self.arenas = comm, rundir, arenas
        self.background = BackgroundTasks(comm, "saves")
        self.planned: Planned | None = None
        self.slots: dict[int, StagingSlot] = {}
        self.in_flight: list[InFlightSave] = []
        self.n_saves = 0
        self.block_records = BlockRecords()
        self.listeners = Listeners()
        self.drains: Drains | None = None

    @property
    def backend(self) -> Backend:
        """Writes the data files."""
        return self.rundir.backend

    @property
    def options(self) -> Options:
        """Of the checkpointer."""
        return self.rundir.options

    @property
    def is_together(self) -> bool:
        """Whether all ranks write at the same time while the caller waits, because the backend communicates."""
        return "collective" in self.backend.features

    @property
    def is_in_background(self) -> bool:
        """Whether `save` returns after the snapshot."""
        return self.options.async_save and not self.is_together

    def new_save(self, request: Request) -> InFlightSave:
        """Return the next save, in its staging slot. Independent."""
        assert self.planned is not None
        slot = self.slots[self.n_saves]
        job = SaveJob(slot.save_id, request.step, self.comm.size, file_layout=self.planned.file_layout)
        return InFlightSave(self.n_saves, request, Staged(job, self.rundir.path, slot.name), self.planned)

    def begin(
        self,
        this: InFlightSave,
        local: Callable[[], Any],
        reduce: Callable[[Sequence[Outcome]], SaveOutcome],
        on_result: Callable[[Outcome], None],
        interrupt: BaseException | None,
    ) -> None:
        """Begin a save, and wait while it reads the state's own memory; then raise `interrupt`. Independent.

        An interrupt of this function itself does not prevent the save: other ranks wait for it.
        """
        go = self.comm.executor.flag()
        name = f"save step {this.request.step}"
        this.task = self.background.prepare(TASKS_PER_SAVE * this.number, name, local, reduce, on_result, go)
        snapshot = None if this.contribution is None else this.contribution.snapshot
        try:
            self.in_flight.append(this)
            self.comm.calls.has_begun = True  # a rank that is interrupted from now on is no reason not to begin it
            self.begin_newest()
            go.set()  # last, because from now on the thread that writes uses the GIL too
            if interrupt is not None:
                raise interrupt  # now that the other ranks will receive its failure
            if snapshot is not None and snapshot.is_view:
                self.background.wait_for_local(this.task)
        except BaseException as error:
            self.comm.calls.has_begun = this in self.in_flight
            if snapshot is not None and snapshot.is_view:
                snapshot.interrupt = error
            go.set()
            raise

    def begin_newest(self) -> None:
        """Begin the newest save, if an interrupt prevented that. Independent."""
        if not self.in_flight or self.in_flight[-1].state > SaveState.PREPARED:
            return
        this = self.in_flight[-1]
        assert this.task is not None
        self.n_saves = this.number + 1
        self.slots.pop(this.number, None)
        self.background.begin(this.task)
        this.state = SaveState.WRITING

    def make_room(self, n_left: int) -> None:
        """Wait until at most `n_left` saves are in flight; raise, once, the failure of an older one. Collective.

        Which saves it waits for depends only on their number, so all ranks raise the same.
        """
        while len(self.in_flight) > n_left:
            oldest = self.in_flight[0]
            self.wait(oldest)
            self.comm.calls.check()  # if another rank has left this call, no rank begins the save
            self.planned = oldest.planned
            try:
                if oldest.state < SaveState.REPORTED:
                    oldest.result()
            finally:
                del self.in_flight[0]

    def finish(self) -> None:
        """Wait for all saves, also after a failure; raise, once, the first failure. Collective."""
        failure: CollectiveError | None = None
        while self.in_flight:
            try:
                self.make_room(0)
            except CollectiveError as error:
                if self.comm.calls.is_broken_off:
                    raise
                failure = failure or error
        if failure is not None:
            raise failure

    def wait(self, this: InFlightSave) -> None:
        """Wait until the outcome of a save is known here. Collective."""
        self.begin_newest()
        while not this.has_ended:
            assert this.task is not None
            self.background.wait(this.task)

    def wait_for_local(self) -> None:
        """Wait until this rank has written its part of all saves in flight. Independent."""
        for each in self.in_flight:
            if each.task is not None:
                self.background.wait_for_local(each.task)
