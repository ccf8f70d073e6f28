"""What a checkpointer binds once: directory, ranks, backend, options; and where its lineage stands."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

from hpcckpt.backends.base import Backend
from hpcckpt.collective.communicator import Communicator
from hpcckpt.collective.planner import SavePlan
from hpcckpt.config import Options
from hpcckpt.discovery import Manifests, StepInfo, inspect_part
from hpcckpt.draining import Draining
from hpcckpt.errors import ForkedError
from hpcckpt.holding import ArenaPool
from hpcckpt.journal import Journal
from hpcckpt.lock import RunLock
from hpcckpt.plan import Declaration, SaveJob, Ticket
from hpcckpt.unchanged import Unchanged
from hpcckpt.workspace import Workspace


@dataclass(frozen=True, slots=True)
class SavedStep:
    """A committed step.

    Attributes
    ----------
    step : int
        Its number.
    path : pathlib.Path
        Its directory.
    nbytes : int
        Tensor bytes written by all ranks.
    files : int
        Number of data files.
    seconds, stall_seconds : float
        From the call to the commit, and how much of that the caller was kept waiting.
    kept : int
        Restorable steps in the run directory afterwards.
    backend : str
        Which backend wrote it.
    warnings : tuple of str
        What went wrong after the commit (retention), with nothing lost.
    linked_nbytes : int
        How many of the bytes were linked from the step before, not written (``incremental``).
    tier : str
        Where it is: ``run``, the run directory, or ``scratch`` until it is drained.
    """

    step: int
    path: Path
    nbytes: int
    files: int
    seconds: float
    stall_seconds: float
    kept: int
    backend: str
    warnings: tuple[str, ...] = ()
    linked_nbytes: int = 0
    tier: Literal["run", "scratch"] = "run"


@dataclass(frozen=True, slots=True)
class Restored:
    """What a restore brought back.

    Attributes
    ----------
    step : int
        The step that was restored.
    metrics : dict of str to float
        As given to ``save``.
    objects : dict
        The JSON values given to ``save(objects=…)``.
    warnings : tuple of str
        What was left out or replaced, in words; empty if everything came back.
    path : pathlib.Path
        The directory it came from.
    n_ranks : int
        How many ranks had saved it.
    level : str
        ``exact``, ``state`` or ``weights``.
    nbytes : int
        Tensor bytes this rank read.
    seconds : float
        Time it took.
    missing, unexpected : tuple of str
        Names that only the state, or only the checkpoint, has (``strict=False``).
    logged : tuple of str
        Those of the warnings that rank 0 has logged: damaged steps, what each rank had for itself that is not
        restored on another number of ranks, and what of the state is not restored with ``strict=False``.
    """

    step: int
    metrics: dict[str, float]
    objects: dict[str, Any]
    warnings: tuple[str, ...]
    path: Path
    n_ranks: int
    level: str
    nbytes: int
    seconds: float
    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    logged: tuple[str, ...] = ()


@dataclass(slots=True)
class Lineage:
    """Which checkpoint the run stands on: the one it saved or restored last. The same on all ranks."""

    run_id: str | None = None
    save_id: str | None = None
    step: int | None = None

    def after(self, job: SaveJob) -> Lineage:
        """Return where a run stands that has saved this."""
        return Lineage(self.run_id or job.save_id, job.save_id, job.step)


class Planned(NamedTuple):
    """A plan, and what it was made for: declarations, and the names of the JSON objects.

    `design` is what root's backend has made of the plan of all ranks.
    """

    declarations: tuple[Declaration, ...]
    objects: tuple[str, ...]
    plan: SavePlan
    design: Any = None


class Places(NamedTuple):
    """Which ranks of a job see the same scratch directory, where not all do: those of a node with a disk of its own.

    Attributes
    ----------
    leader_of : tuple of int
        For each rank the lowest that is at its place.
    """

    leader_of: tuple[int, ...]

    def beside(self, rank: int) -> tuple[int, ...]:
        """Return the ranks at the place of a rank, in rising order. Pure."""
        return tuple(other for other, leader in enumerate(self.leader_of) if leader == self.leader_of[rank])


class Candidate(NamedTuple):
    """A step that may be restored, and the run directory that it is in: that of the job, or scratch."""

    step: int
    directory: Path


class Behind(Protocol):
    """What stands behind a run on scratch: the run directory that its steps are drained to."""

    home: Run

    def look_ahead(self, step: int, *, overwrite: bool) -> None:
        """Refuse what could not be published there. Root only."""

    def committed(self, step: int) -> None:
        """Keep a step that was committed on scratch until it is drained. Root only, or the leader of each place."""

    def begin(self, number: int, saved: SavedStep, job: SaveJob, *, overwrite: bool) -> None:
        """Begin to drain a step. Independent."""

    def candidates(self) -> list[Candidate]:
        """Return the steps that may be restored, the best first. Root only."""

    def bring_home(self, step: int | None) -> tuple[str, ...]:
        """Drain what can be restored from the run directory only; say what cannot be drained. Collective."""

    def stands_on(self, lineage: Lineage) -> None:
        """Take in which step was restored. Independent."""

    def durable(self, number: int) -> SavedStep:
        """Wait until a save is in the run directory. Collective."""

    def finish(self) -> None:
        """Wait for all drains. Collective."""

    @property
    def is_draining(self) -> bool:
        """Whether a step is on its way."""

    @property
    def is_drained(self) -> bool:
        """Whether all steps have come there."""


@dataclass(slots=True, eq=False, weakref_slot=True)
class Run:
    """A run directory as one job uses it.

    Attributes
    ----------
    draining : Draining
        The background.
    arenas : ArenaPool
        Memory for copies.
    planned : Planned or None
        Who writes what, until the state changes.
    tickets : dict of int to Ticket
        What root has prepared, by the number of the save.
    underway : list
        Saves whose outcome nobody has waited for, the oldest first.
    workspace : Workspace
        Root only: what this process uses in the directory.
    reusable : pathlib.Path or None
        Root only: a retired directory for the next save.
    recycles : bool
        Root only: whether files of retired steps are written over.
    manifests : Manifests
        Root only: those of the steps that were read before.
    unchanged : Unchanged
        Which tensors did not change since the newest step.
    damaged : dict of int to str
        Steps whose bytes a restore of this job found damaged, with their `save_id`; the same on all ranks.
        Their manifests and sizes may be fine, so nobody else can tell before reading all of them.
    read : Candidate or None
        Root only: the step that is being restored, and pinned.
    listeners : list of callable
        Who is told of each step that is committed, when this rank hears of it.
    journal : Journal
        What happens in the run is told to it; root alone writes it.
    tier : Behind or None
        The run directory, if this is a run on scratch.
    places : Places or None
        Who sees the directory, if this is a run on scratch of several places: then it is that of this rank's place.
    pid : int
        The process that opened it; a forked child has a copy that it must not use.
    ended_by : tuple of (str, int or None, str) or None
        Class, exit code and text of what ended the program's block while saves were being written.
    """

    directory: Path
    comm: Communicator
    backend: Backend
    options: Options
    draining: Draining
    arenas: ArenaPool
    lineage: Lineage = field(default_factory=Lineage)
    lock: RunLock | None = None
    n_saves: int = 0
    planned: Planned | None = None
    tickets: dict[int, Ticket] = field(default_factory=dict)
    underway: list[Any] = field(default_factory=list)
    workspace: Workspace = field(init=False)
    reusable: Path | None = None
    recycles: bool = False
    manifests: Manifests = field(default_factory=Manifests)
    unchanged: Unchanged = field(default_factory=Unchanged)
    closed: bool = False
    damaged: dict[int, str] = field(default_factory=dict)
    read: Candidate | None = None
    listeners: list[Callable[[SavedStep], None]] = field(default_factory=list)
    journal: Journal = field(init=False)
    tier: Behind | None = None
    places: Places | None = None
    pid: int = field(default_factory=os.getpid)
    ended_by: tuple[str, int | None, str] | None = None

    def __post_init__(self) -> None:
        self.workspace = Workspace.at(self.directory)
        self.journal = Journal(self.directory, is_writing=self.comm.is_root, guard=self.workspace.noting)

    @property
    def is_forked(self) -> bool:
        """Whether this is the copy that a forked child has of its parent's run."""
        return os.getpid() != self.pid

    def check_process(self) -> None:
        """Raise if this process is not the one that opened the run. Independent.

        Raises
        ------
        ForkedError
            In a forked child.
        """
        if self.is_forked:
            raise ForkedError(
                f"the checkpointer of {self.directory} belongs to process {self.pid}, and this is process "
                f"{os.getpid()}, forked from it; create a new Checkpointer here, with another directory"
            )

    @property
    def is_together(self) -> bool:
        """Whether all ranks write at the same time, while the caller waits, for the backend communicates."""
        return "collective" in self.backend.features

    @property
    def is_in_background(self) -> bool:
        """Whether `save` returns after the snapshot."""
        return self.options.async_save and not self.is_together

    @property
    def is_leading(self) -> bool:
        """Whether this rank does at its place what root does where all ranks see one directory."""
        return self.comm.is_root if self.places is None else self.places.leader_of[self.comm.rank] == self.comm.rank

    def marked(self, info: StepInfo) -> StepInfo:
        """Return what discovery says of a step, with the damage that a restore of this job found. Independent.

        Where the directory is one place of several, a part is all that can be there.
        """
        if self.places is not None:
            info = inspect_part(info, self.manifests)
        if info.manifest is None or self.damaged.get(info.step) != info.manifest.save_id:
            return info
        return replace(info, problem=info.problem or f"step {info.step}: a restore found its bytes damaged")
