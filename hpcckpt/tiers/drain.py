"""One step on its way from scratch to the run directory."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from hpcckpt import discovery
from hpcckpt.discovery import StepInfo
from hpcckpt.draining import Matter, Outcome
from hpcckpt.errors import CollectiveError, Failure, RetiredError, collective_error
from hpcckpt.manifest import Manifest
from hpcckpt.plan import StoredEntry
from hpcckpt.run import SavedStep


@dataclass(slots=True, eq=False)
class Drain:
    """One step on its way home, on this rank.

    Attributes
    ----------
    number : int
        Which save of the checkpointer it is; -1 of one that an earlier job left.
    saved : SavedStep
        The step on scratch.
    overwrite : bool
        Whether it replaces another save of its number.
    matter : Matter or None
        What goes on, once it has begun.
    home : SavedStep or None
        The step in the run directory, when it is there.
    is_published : bool
        Root only: whether the run directory has it; set with `Workspace.changing`, before any rank knows the outcome.
    failures : mapping of int to Failure
        What kept it from that.
    manifest : Manifest or None
        Of a step that an earlier job left at several places: this rank's may have nothing of it.
    warnings : tuple of str
        Root only: what went wrong on scratch meanwhile, with nothing lost.
    unheard : list of callable
        Listeners that are still to be called with the drained step, the next one last.
    """

    number: int
    saved: SavedStep
    save_id: str
    overwrite: bool
    began: float
    matter: Matter | None = None
    home: SavedStep | None = None
    is_published: bool = False
    failures: Mapping[int, Failure] | None = None
    is_told: bool = False
    manifest: Manifest | None = None
    warnings: tuple[str, ...] = ()
    unheard: list[Callable[[SavedStep], None]] = field(default_factory=list)

    @property
    def is_over(self) -> bool:
        """Whether its outcome is known here."""
        return self.home is not None or self.failures is not None


def left_by_earlier_job(info: StepInfo) -> Drain:
    """Return the drain of a step that an earlier job had committed on scratch. Pure, but for the clock."""
    m = info.manifest
    assert m is not None
    left = SavedStep(info.step, info.path, m.nbytes, len(m.files), 0.0, 0.0, 0, m.backend, tier="scratch")
    return Drain(-1, left, m.save_id, overwrite=False, began=time.monotonic())


class Answer(NamedTuple):
    """What root tells all ranks of a drain: that the step is home, or what failed where, or what is to be read back."""

    home: SavedStep | None = None
    failures: Mapping[int, Failure] = {}
    entries: tuple[StoredEntry, ...] = ()


def answer_of(outcome: Outcome) -> Answer:
    """Return what root said; that it failed, if it could not. Pure."""
    if outcome.failure is not None:
        return Answer(failures={0: outcome.failure})
    answer: Answer = outcome.value
    return answer


def failures_of(outcomes: Sequence[Outcome]) -> dict[int, Failure]:
    """Return what failed on which ranks. Pure."""
    return {rank: outcome.failure for rank, outcome in enumerate(outcomes) if outcome.failure is not None}


def manifest_of(drain: Drain, path: Path) -> Manifest:
    """Return the manifest of a step that is on scratch here. Independent."""
    if drain.manifest is not None:
        return drain.manifest
    manifest = discovery.read_manifest(path)
    if manifest.save_id != drain.save_id:
        raise RetiredError(f"{path} was replaced on scratch before it was drained")
    return manifest


def error_of(drain: Drain, failures: Mapping[int, Failure]) -> CollectiveError:
    """Make the error that every rank raises. Pure."""
    return collective_error(f"drain step {drain.saved.step} from {drain.saved.path} to the run directory", failures)
