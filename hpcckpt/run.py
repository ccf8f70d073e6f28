"""What a checkpointer binds once: directory, ranks, backend, options; and where its lineage stands."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpcckpt.backends.base import Backend
from hpcckpt.collective.communicator import Communicator
from hpcckpt.config import Options
from hpcckpt.lock import RunLock


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


@dataclass(slots=True)
class Lineage:
    """Which checkpoint the run stands on: the one it saved or restored last. The same on all ranks."""

    run_id: str | None = None
    save_id: str | None = None
    step: int | None = None


@dataclass(slots=True)
class Run:
    """A run directory as one job uses it."""

    directory: Path
    comm: Communicator
    backend: Backend
    options: Options
    lineage: Lineage = field(default_factory=Lineage)
    lock: RunLock | None = None
    n_saves: int = 0
    closed: bool = False
