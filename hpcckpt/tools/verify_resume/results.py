"""Settings and results of a verification of resuming."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

PLACEHOLDER = "{run}"
VARIABLE = "HPCCKPT_RUN"


@dataclass(frozen=True, slots=True)
class VerifySettings:
    """The options of `verify`.

    Attributes
    ----------
    command : tuple of str
        The training; ``{run}`` in it is replaced by the run directory.
    place : Path
        An empty directory for both run directories and for the output of the training.
    variable : str
        Environment variable that contains the run directory.
    seed : int
        Decides when it is killed.
    n_kills : int
        How often it is killed.
    kill_after : int or None
        Kill when this step exists, instead of a random one.
    rtol : float
        Differences up to this part of the larger value do not count; 0 counts every bit.
    patterns : tuple of str
        Names of the tensors to compare; all without any.
    files : tuple of str
        Files that must be equal in the end; relative to the run directory, or with ``{run}``.
    losses : tuple of str
        CSV files, or files with a JSON object on each line, whose numbers must be equal.
    timeout_s : float or None
        After how long a run is hung.
    """

    command: tuple[str, ...]
    place: Path
    variable: str = VARIABLE
    seed: int = 0
    n_kills: int = 1
    kill_after: int | None = None
    rtol: float = 0.0
    patterns: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    losses: tuple[str, ...] = ()
    timeout_s: float | None = None


@dataclass(frozen=True, slots=True)
class Kill:
    """When a run is killed.

    Attributes
    ----------
    after : int
        When this step, or a later one, is there,
    later_s : float
        and so much later.
    """

    after: int
    later_s: float


@dataclass(frozen=True, slots=True)
class ObservedStep:
    """A step that a run committed: when, counted from its start, and with which metrics."""

    step: int
    elapsed_s: float
    metrics: Mapping[str, float] = field(default_factory=dict)
    save_id: str = ""


@dataclass(frozen=True, slots=True)
class ProgramRun:
    """One run of the training.

    Attributes
    ----------
    name : str
        ``straight``, ``killed`` or ``resumed``.
    code : int
        How it ended; negative for the signal that ended it.
    seconds : float
        How long it took.
    began_at : int or None
        The newest step that was there when it began.
    seen : tuple of ObservedStep
        What it committed.
    kill : Kill or None
        When it was to be killed.
    """

    name: str
    code: int
    seconds: float
    began_at: int | None
    seen: tuple[ObservedStep, ...]
    kill: Kill | None = None

    @property
    def newest(self) -> int | None:
        """The last step that it committed."""
        return self.seen[-1].step if self.seen else None


@dataclass(frozen=True, slots=True)
class Compared:
    """How much of one kind of thing is the same.

    Attributes
    ----------
    what : str
        ``model``, ``losses``, a file, …
    n_same, n_all : int
        How many of them are the same.
    max_abs : float or None
        The largest difference; ``None`` where there is none to be had.
    differing : tuple of str
        What differs, in words.
    """

    what: str
    n_same: int
    n_all: int
    max_abs: float | None = 0.0
    differing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """The result of `verify`.

    Attributes
    ----------
    runs : tuple of ProgramRun
        In the order in which they were run.
    step : int or None
        The step that both ended with, if both left one.
    level : str
        What the checkpoints promise: ``exact``, ``state`` or ``weights``.
    compared : tuple of Compared
        The comparison.
    notes : tuple of str
        What else to know.
    """

    runs: tuple[ProgramRun, ...]
    step: int | None
    level: str
    compared: tuple[Compared, ...]
    notes: tuple[str, ...] = ()

    @property
    def is_same(self) -> bool:
        """Whether all that was compared is the same."""
        return all(each.n_same == each.n_all for each in self.compared)
