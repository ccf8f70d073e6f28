"""A save in flight: the request, what this rank contributes, root's outcome. Data only; `save_queue` owns these."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from hpcckpt.collective.background import CollectiveTask
from hpcckpt.collective.planner import SavePlan, signature
from hpcckpt.core.options import Level
from hpcckpt.core.plan import Declaration, StagingSlot
from hpcckpt.core.results import SavedStep
from hpcckpt.errors import Failure, collective_error
from hpcckpt.format.manifest import Manifest
from hpcckpt.rundir import commit
from hpcckpt.rundir.reports import Content
from hpcckpt.saving.snapshot import Snapshot


class Request(NamedTuple):
    """What the caller asks to save, beside the state."""

    step: int
    metrics: Mapping[str, float]
    objects: Mapping[str, Any]
    overwrite: bool
    level: Level = "state"


class Timing(NamedTuple):
    """When `save` was called, by the monotonic clock, and how long the caller waited for the snapshot."""

    began: float
    stall_s: float


class Planned(NamedTuple):
    """A save plan, and the state that it was made for: its declarations, and the names of its JSON objects.

    `file_layout` is what root's backend made for all ranks.
    """

    declarations: tuple[Declaration, ...]
    objects: tuple[str, ...]
    plan: SavePlan
    file_layout: Any = None


@dataclass(slots=True, eq=False)
class Contribution:
    """What one rank contributes to a save: its state as it was when `save` was called.

    Attributes
    ----------
    declarations, objects : tuple
        The tensors, and the names of the JSON objects.
    plan : SavePlan or None
        What is written, with the sizes of this rank's own values; ``None`` if the state does not fit the save plan, and
        all ranks have to plan again.
    snapshot : Snapshot or None
        The values, until they are written.
    content : Content or None
        Root only: what else the manifest records.
    replicas : callable or None
        If replicas are compared at this save: returns their checksums.
    timing : Timing
        Of the call.
    not_numbers : tuple of str
        If `nan_guard` is on: the JSON values of this rank with a NaN.
    """

    declarations: tuple[Declaration, ...]
    objects: tuple[str, ...]
    plan: SavePlan | None
    snapshot: Snapshot | None
    content: Content | None
    replicas: Callable[[], list[int]] | None
    timing: Timing
    not_numbers: tuple[str, ...] = ()


def object_names(objects: Iterable[str]) -> list[str]:
    """Return the texts by which ranks compare the JSON objects of their states. Pure."""
    return [f"object {name}" for name in objects]


def signatures(declarations: Sequence[Declaration], objects: Iterable[str]) -> list[str]:
    """Return the texts by which ranks compare their states. Pure."""
    return [*map(signature, declarations), *object_names(objects)]


class ReplanRequest(NamedTuple):
    """What a rank whose state has changed reports instead of writing: what it holds now."""

    signatures: list[str]
    own: tuple[Declaration, ...]


class NodeParts(NamedTuple):
    """A save that the ranks wrote on the disks of several nodes.

    Attributes
    ----------
    manifest : Manifest
        Of the whole step.
    at : tuple of int
        For each of its files, the leader of the node that has it.
    nbytes, linked_nbytes : int
        What all ranks wrote, and how much of that they linked from an earlier step.
    """

    manifest: Manifest
    at: tuple[int, ...]
    nbytes: int
    linked_nbytes: int


class SaveOutcome(NamedTuple):
    """What root sends all ranks about a save: the step, the failures by rank, or what is left to do.

    Left to do: plan again by the requests of all ranks, with this `file_layout`; or commit the parts of several nodes.
    `slot` is for a later save; `step` is root's, which others may differ from by mistake.
    """

    saved: SavedStep | None = None
    phase: str = ""
    failures: Mapping[int, Failure] = {}
    slot: StagingSlot | None = None
    step: int | None = None
    proposals: tuple[tuple[Declaration, ...], ...] = ()
    file_layout: Any = None
    parts: NodeParts | None = None


class SaveState(enum.IntEnum):
    """How far a save is on this rank."""

    PREPARED = 0
    WRITING = 1
    WRITING_AGAIN = 2
    COMMITTING_PARTS = 3
    ENDED = 4
    REPORTED = 5


@dataclass(slots=True, eq=False)
class InFlightSave:
    """A save in flight on this rank.

    Attributes
    ----------
    number : int
        Which save of the checkpointer it is, counted from 0 on: the same on all ranks.
    request : Request
        What the caller asked for.
    staged : Staged
        Its staging directory.
    planned : Planned
        The save plan it is written by.
    contribution : Contribution or None
        What this rank writes; ``None`` if its snapshot failed, and when the save has ended.
    task : CollectiveTask
        What all ranks do for it now.
    state : SaveState
        How far it is.
    outcome : SaveOutcome or None
        From `SaveState.ENDED` on: the committed step, or the failures.
    drain : object
        What `hpcckpt.tiers` knows of its way from scratch to the run directory.
    """

    number: int
    request: Request
    staged: commit.Staged
    planned: Planned
    contribution: Contribution | None = None
    task: CollectiveTask | None = None
    state: SaveState = SaveState.PREPARED
    outcome: SaveOutcome | None = None
    drain: object = None

    @property
    def has_ended(self) -> bool:
        """Whether its outcome is known here."""
        return self.state >= SaveState.ENDED

    def result(self) -> SavedStep:
        """Return the step that was committed, or raise what prevented it: now the caller knows. Independent."""
        assert self.outcome is not None
        assert self.task is not None
        self.state = SaveState.REPORTED
        if self.outcome.saved is None:
            step = self.request.step if self.outcome.step is None else self.outcome.step
            phase = f"save step {step}: {self.outcome.phase}"
            raise collective_error(phase, self.outcome.failures) from self.task.local.error
        return self.outcome.saved
