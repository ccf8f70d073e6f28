"""What became of a run: its jobs, saves, failures and steps. Data, no behaviour but what follows from it at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hpcckpt.rundir.leftovers import Usage


@dataclass(frozen=True, slots=True)
class JobHistory:
    """A job that worked in the run.

    Attributes
    ----------
    began, last : float
        When it began, and its last entry; seconds since 1970.
    end : str
        ``ended``, ``halted``, ``preempted``, ``failed``, ``running``, or ``died``: without reporting it.
    reason : str
        Why it stopped, or the error that broke it off.
    job, scheduler, host : str
        Where it ran.
    restart : int or None
        How often the scheduler had started it again.
    restored : int or None
        The step that it went on from.
    ranks_before : int or None
        How many ranks had saved that.
    """

    began: float
    last: float
    end: str
    reason: str = ""
    job: str = ""
    scheduler: str = ""
    host: str = ""
    n_ranks: int = 0
    backend: str = ""
    version: str = ""
    restart: int | None = None
    restored: int | None = None
    ranks_before: int | None = None

    @property
    def seconds(self) -> float:
        """How long it is known to have run."""
        return max(0.0, self.last - self.began)

    @property
    def has_died(self) -> bool:
        """Whether it ended otherwise than it was to."""
        return self.end in {"died", "failed"}


@dataclass(frozen=True, slots=True)
class Save:
    """A step that was committed.

    Attributes
    ----------
    part : str
        The cycle; "" where there are none.
    time : float
        When it was committed.
    stall_s, seconds, cost_s : float or None
        How long it stalled the training, how long it took in total, and its cost including the batches that were
        slower meanwhile; None if unknown.
    state : str
        By default that it is still stored; else ``removed`` (by retention, ``prune`` or ``rm``), or ``gone`` (removed
        or replaced otherwise).
    tags : tuple of str
        ``latest``, ``best``, ``pinned``, ``damaged``.
    """

    part: str
    time: float
    step: int
    nbytes: int
    epoch: int | None = None
    files: int | None = None
    stall_s: float | None = None
    seconds: float | None = None
    cost_s: float | None = None
    n_ranks: int | None = None
    level: str = ""
    save_id: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict)
    state: str = "kept"
    tags: tuple[str, ...] = ()

    @property
    def bandwidth(self) -> float | None:
        """Bytes a second, from the call to the commit."""
        return self.nbytes / self.seconds if self.seconds else None


@dataclass(frozen=True, slots=True)
class FailedSave:
    """A save that failed."""

    part: str
    time: float
    step: int
    kind: str
    message: str


@dataclass(frozen=True, slots=True)
class Restore:
    """A restore of a job."""

    part: str
    time: float
    step: int
    seconds: float
    n_ranks: int
    ranks_before: int
    skipped: int


@dataclass(frozen=True, slots=True)
class Change:
    """A change of the run by hand.

    Attributes
    ----------
    verb : str
        How: ``prune``, ``copy``, ``repair`` or ``reshard``.
    steps : tuple of int
        The steps that were removed or came; of very many the first.
    n_steps : int
        How many they were.
    source : str
        The directory that a copy came from.
    """

    part: str
    time: float
    verb: str
    steps: tuple[int, ...]
    n_steps: int
    source: str = ""


@dataclass(frozen=True, slots=True)
class Epoch:
    """The metrics of an epoch, as ``hpcckpt train`` writes them."""

    part: str
    time: float
    epoch: int
    step: int
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class RunHistory:
    """What became of a run, each list in the order of its journal; the parts are merged by time.

    Attributes
    ----------
    directory : str
        The run directory.
    parts : tuple of str
        The cycles; ``("",)`` where there are none.
    writing : str
        The holder of a lock there; "" if there is none.
    asked : str
        The request in a file ``HALT`` there; "" if there is none.
    has_journal : bool
        Whether there was a journal; otherwise everything is read from the existing steps.
    problems : tuple of str
        What is wrong with steps that are stored.
    other : tuple of Usage
        What takes space beside the steps.
    """

    directory: str
    parts: tuple[str, ...]
    jobs: tuple[JobHistory, ...]
    saves: tuple[Save, ...]
    failures: tuple[FailedSave, ...]
    restores: tuple[Restore, ...]
    epochs: tuple[Epoch, ...]
    changes: tuple[Change, ...] = ()
    writing: str = ""
    asked: str = ""
    has_journal: bool = True
    problems: tuple[str, ...] = ()
    other: tuple[Usage, ...] = ()
