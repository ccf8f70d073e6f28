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


Progress = Callable[[int], None]
