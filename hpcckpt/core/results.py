"""What saving and restoring return, and how progress is reported."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal


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
        Time from the call to the commit; and how long the call blocked.
    kept : int
        Number of restorable steps in the run directory afterwards.
    backend : str
        The backend that wrote it.
    warnings : tuple of str
        Problems after the commit (retention); nothing was lost.
    linked_nbytes : int
        How many of the bytes were not written, but linked from the previous step (``incremental``).
    tier : str
        Where it is: ``run`` for the run directory, ``scratch`` until it is drained.
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
        Messages about what was left out or replaced; empty if everything was restored.
    path : pathlib.Path
        The directory of the step.
    n_ranks : int
        Number of ranks that saved it.
    level : str
        ``exact``, ``state`` or ``weights``.
    nbytes : int
        Tensor bytes this rank read.
    seconds : float
        Time it took.
    missing, unexpected : tuple of str
        Names that only the state has, and names that only the checkpoint has (``strict=False``).
    logged : tuple of str
        The warnings that rank 0 has logged: about damaged steps, about per-rank values that are not restored on
        another number of ranks, and about parts of the state that are not restored with ``strict=False``.
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


Progress = Callable[[int], None]
