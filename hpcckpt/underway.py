"""A save under way: what was asked, what a rank whose state has changed proposes, what root answers. No behaviour."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hpcckpt.backends.base import Payload
from hpcckpt.collective import commit
from hpcckpt.collective.planner import SavePlan
from hpcckpt.config import Level
from hpcckpt.draining import Matter
from hpcckpt.errors import Failure
from hpcckpt.holding import Held
from hpcckpt.manifest import Manifest
from hpcckpt.plan import Declaration, Ticket
from hpcckpt.publishing import Content, Report
from hpcckpt.run import Planned, SavedStep
from hpcckpt.snapshot import StateTree


class Request(NamedTuple):
    """What the caller asks to save, beside the state."""

    step: int
    metrics: Mapping[str, float]
    objects: Mapping[str, Any]
    overwrite: bool
    level: Level = "state"


class Proposal(NamedTuple):
    """What a rank whose state has changed reports instead of writing: what it holds now."""

    alike: list[str]
    own: tuple[Declaration, ...]


class Closing(NamedTuple):
    """A save that all ranks wrote at several places: its manifest, and the leader of the place of each of its files."""

    manifest: Manifest
    at: tuple[int, ...]


class Answer(NamedTuple):
    """What root tells all ranks of a save: the step, or what failed where; or what is to be done yet.

    That is to plan anew by what all propose, with its design; or to close the parts of several places. `ticket` is for
    a save to come.
    """

    saved: SavedStep | None = None
    phase: str = ""
    failures: Mapping[int, Failure] = {}
    ticket: Ticket | None = None
    proposals: tuple[tuple[Declaration, ...], ...] = ()
    design: Any = None
    closing: Closing | None = None


@dataclass(slots=True, eq=False)
class Underway:
    """A save under way on this rank.

    Attributes
    ----------
    number : int
        Which save of the checkpointer it is, counted from 0 on: the same on all ranks.
    planned, plan : Planned, SavePlan
        What it is written by, and that with the sizes of this rank's own values.
    is_told : bool
        Whether its outcome was returned or raised already.
    part : callable or None
        What this rank does for it on a thread, until that was begun.
    unheard : list of callable
        Listeners that are still to be called with the committed step, the next one last.
    interrupt : BaseException or None
        KeyboardInterrupt or SystemExit that came while this rank held its state still.
    reports : sequence of Report
        Root only: what all ranks wrote at several places.
    undo : ExitStack or None
        What takes the part of this rank's place back.
    """

    number: int
    request: Request
    staged: commit.Staged
    began: float
    planned: Planned
    plan: SavePlan | None = None
    content: Content | None = None
    stall_s: float = 0.0
    part: Callable[[], Any] | None = None
    matter: Matter = field(init=False)
    held: Held | None = None
    tree: StateTree | None = None
    payloads: Sequence[Payload] = ()
    non_finite: tuple[str, ...] = ()
    answer: Answer | None = None
    is_told: bool = False
    unheard: list[Callable[[SavedStep], None]] = field(default_factory=list)
    interrupt: BaseException | None = None
    reports: Sequence[Report] = ()
    undo: ExitStack | None = None
