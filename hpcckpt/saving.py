"""How a step is saved: make room, hold the state still, and let it drain while the program goes on.

What each rank holds is written on a thread and reported to root, which publishes the step on a thread of
its own (:mod:`hpcckpt.publishing`); the outcome reaches every rank the next time it polls or waits
(:mod:`hpcckpt.draining`).  The numbers are those of the commit protocol
(:mod:`hpcckpt.collective.commit`).

Only the first save plans collectively.  The plan holds for as long as names, shapes and dtypes stay; a rank whose
state has changed proposes the new one instead of writing, and when all do, they plan anew and go on.
"""

from __future__ import annotations

import copy
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, get_args

from hpcckpt import layout, native, phases, publishing
from hpcckpt.backends.base import Payload
from hpcckpt.collective import commit
from hpcckpt.collective.planner import (
    SavePlan,
    alike,
    fits,
    full_plan,
    gather_declarations,
    own_declarations,
    plan_for,
    tree_mismatch,
    with_own,
)
from hpcckpt.config import Level
from hpcckpt.draining import Matter, Outcome
from hpcckpt.errors import CollectiveError, Failure, ShardingError, StateError, as_failure, collective_error
from hpcckpt.holding import Held, cut, hold, live, replica_checksums, replica_names
from hpcckpt.plan import Declaration, SaveJob, Ticket, WriteItem
from hpcckpt.publishing import Content, Report
from hpcckpt.run import Planned, Run, SavedStep
from hpcckpt.snapshot import StateTree, flatten, is_json
from hpcckpt.tensors import is_text

_log = logging.getLogger("hpcckpt")


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


class Answer(NamedTuple):
    """What root tells all ranks of a save: the step, or what failed where; or what all propose, and its design.

    `ticket` is for a save to come.
    """

    saved: SavedStep | None = None
    phase: str = ""
    failures: Mapping[int, Failure] = {}
    ticket: Ticket | None = None
    proposals: tuple[tuple[Declaration, ...], ...] = ()
    design: Any = None


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
    interrupt : BaseException or None
        KeyboardInterrupt or SystemExit that came while this rank held its state still.
    """

    number: int
    request: Request
    staged: commit.Staged
    began: float
    planned: Planned
    plan: SavePlan | None = None
    content: Content | None = None
    stall_s: float = 0.0
    matter: Matter = field(init=False)
    held: Held | None = None
    tree: StateTree | None = None
    payloads: Sequence[Payload] = ()
    non_finite: tuple[str, ...] = ()
    answer: Answer | None = None
    is_told: bool = False
    interrupt: BaseException | None = None


def save(run: Run, state: Any, request: Request) -> Underway:
    """Begin to save a step: snapshot, and leave the rest to the background. Collective.

    Raises
    ------
    CollectiveError
        If an earlier save failed, or this one before its first byte; alike on every rank, and of the failure's own
        class too.
    """
    began = time.monotonic()
    make_room(run, run.options.max_in_flight - 1)
    is_planned = run.n_saves in run.tickets and not run.is_together
    tree = None if is_planned else _begin(run, state, request)
    ticket = run.tickets.pop(run.n_saves)
    assert run.planned is not None
    job = SaveJob(ticket.save_id, request.step, run.comm.size, design=run.planned.design)
    this = Underway(run.n_saves, request, commit.Staged(job, run.directory, ticket.name), began, run.planned)
    run.n_saves += 1
    part = _part(run, this, state, tree)
    if run.is_together:
        part = _together(run, this, part)
    is_live = this.held is not None and this.held.is_live
    this.stall_s = time.monotonic() - began
    go = threading.Event()
    this.matter = run.draining.start(2 * this.number, f"save step {request.step}", part, *_ending(run, this), go)
    run.underway.append(this)
    go.set()  # last, for from now on the part wants the GIL too
    if this.interrupt is not None:
        raise this.interrupt  # now that the others will hear of it
    if is_live:
        this.matter.part.join()
    if not run.is_in_background:
        wait(run, this)
        outcome_of(this)
    return this


# -- waiting -------------------------------------------------------------------------------------


def make_room(run: Run, n_left: int) -> None:
    """Wait until at most `n_left` saves are under way; raise, once, what an older one failed of. Collective.

    Which saves are waited for depends on nothing but their number, so all ranks raise the same.
    """
    while len(run.underway) > n_left:
        oldest = run.underway[0]
        wait(run, oldest)
        del run.underway[0]
        run.planned = oldest.planned
        if not oldest.is_told:
            outcome_of(oldest)


def finish(run: Run) -> None:
    """Wait for all saves, whatever becomes of them; raise, once, what the first failed of. Collective."""
    failure: CollectiveError | None = None
    while run.underway:
        try:
            make_room(run, 0)
        except CollectiveError as error:
            failure = failure or error
    if failure is not None:
        raise failure


def wait(run: Run, this: Underway) -> None:
    """Wait until the outcome of a save is known here. Collective."""
    while this.answer is None:
        run.draining.wait(this.matter)


def outcome_of(this: Underway) -> SavedStep:
    """Return the step that was committed, or raise what kept it from being committed. Independent."""
    assert this.answer is not None
    this.is_told = True
    if this.answer.saved is None:
        phase = f"save step {this.request.step}: {this.answer.phase}"
        raise collective_error(phase, this.answer.failures) from this.matter.part.error
    return this.answer.saved


# -- 0 and 1: the first save -----------------------------------------------------------------------


def _begin(run: Run, state: Any, request: Request) -> StateTree:
    """Plan, and open the run directory; the first save does, and one for which nothing is prepared. Collective."""
    where = f"save step {request.step}"
    tree = run.comm.agree(f"{where}: read state", lambda: _read_state(run, state, request))
    named = [f"step {request.step}", *_object_names(tree)]
    gathered = gather_declarations(run.comm, tree.declarations, named)
    plan = plan_for(run.comm.rank, tree.declarations, gathered)
    n_tickets = 0 if run.n_saves in run.tickets else 1 if run.n_saves else run.options.max_in_flight

    def begin() -> tuple[Any, list[Ticket]]:
        publishing.regain(run)
        publishing.open_for_writing(run)
        publishing.look_ahead(run, request.step, overwrite=request.overwrite)
        commit.check_space(run.directory, plan, run.comm.size)
        design = _design(run, tree.declarations, gathered)
        return design, [publishing.prepare(run, design) for _ in range(n_tickets)]

    design, tickets = run.comm.on_root(f"{where}: begin", begin)
    run.planned = Planned(tree.declarations, tuple(tree.objects), plan, design)
    run.tickets.update(enumerate(tickets, start=run.n_saves))
    return tree


def _design(run: Run, declarations: Sequence[Declaration], gathered: Sequence[Sequence[Declaration]]) -> Any:
    """Let the backend make of a plan what all ranks will have to know. Root only."""
    designs = "designs" in run.backend.features
    return run.backend.design(replace(full_plan(declarations, gathered), directory=run.directory)) if designs else None


def _object_names(tree: StateTree) -> list[str]:
    return [f"object {name}" for name in tree.objects]


def _read_state(run: Run, state: Any, request: Request) -> StateTree:
    phases.reached("0-plan", run.comm.rank)
    if not 0 <= request.step <= layout.MAX_STEP:
        raise StateError(f"step {request.step} is not between 0 and {layout.MAX_STEP}")
    wrong = [name for name, value in request.metrics.items() if not _is_metric(name, value)]
    if wrong:
        raise StateError(f"metrics {wrong} are not numbers: metrics map names to numbers")
    if request.level not in get_args(Level):
        raise StateError(f"level {request.level!r} is not one of {', '.join(get_args(Level))}")
    tree = flatten(state)
    if not is_json(dict(request.objects)):
        raise StateError(
            "objects must be JSON values: strings, numbers, booleans, None, lists, and dicts with string keys"
        )
    return tree


def _is_metric(name: Any, value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError, OverflowError):
        return False
    return isinstance(name, str) and is_text(name) and not isinstance(value, str)


# -- 2: what this rank does ------------------------------------------------------------------------


def _part(run: Run, this: Underway, state: Any, tree: StateTree | None) -> Callable[[], Report | Proposal]:
    """Hold the state still and return what is to be done with it; a failure is left to that, for all to hear of."""
    try:
        tree = _read_state(run, state, this.request) if tree is None else tree
        if run.comm.is_root:
            this.content = _content(tree, this.request)
        if not (fits(this.planned.declarations, tree.declarations) and this.planned.objects == tuple(tree.objects)):
            return _propose(run, this, tree)
        this.plan = with_own(this.planned.plan, tree.declarations)
        this.held = _hold(run, tree, this.plan.items)
        return _write(run, this, this.plan, _replicas(run, this, tree))
    except BaseException as error:  # noqa: BLE001 - whatever it is, the other ranks are waiting for this one
        failure = error
        if not isinstance(error, Exception):
            this.interrupt = error

        def fail() -> Report:
            raise failure

        return fail


def _content(tree: StateTree, request: Request) -> Content:
    objects = {"state": {name: leaf.read() for name, leaf in tree.objects.items()}, "user": dict(request.objects)}
    metrics = {name: float(value) for name, value in request.metrics.items()}
    return Content(metrics, copy.deepcopy(objects), replica_names(tree), request.level)


def _hold(run: Run, tree: StateTree, items: Sequence[WriteItem]) -> Held:
    """Hold the state, within the bounds there are for that, or look at it while the caller waits. Independent."""
    limit, is_too_much = run.options.max_bytes_in_flight, False
    if limit is not None:
        is_too_much = sum(item.nbytes for item in items) > limit
        for earlier in run.underway:
            earlier.matter.part.join()
    if is_too_much or not run.is_in_background:
        return live(tree, items)
    return hold(tree, items, run.arenas, run.backend.threads)


def _replicas(run: Run, this: Underway, tree: StateTree) -> Callable[[], list[int]] | None:
    interval = run.options.check_replicas
    is_due = run.comm.size > 1 and interval > 0 and this.number % interval == 0
    return replica_checksums(tree) if is_due else None


def _write(run: Run, this: Underway, plan: SavePlan, replicas: Callable[[], list[int]] | None) -> Callable[[], Report]:
    def write() -> Report:
        rank = run.comm.rank
        if not run.is_together:  # else all ranks are ready
            _get_ready(run, this, plan)
        held, this.held = this.held, None
        assert held is not None
        try:
            written = run.backend.write(this.staged.job, this.staged.path, rank, held.payloads, _base(run))
        finally:
            if held.arena is not None:
                run.arenas.give_back(held.arena)
        phases.reached("3-report", rank)
        return Report(this.request.step, written, replicas() if replicas else None, this.non_finite)

    return write


def _get_ready(run: Run, this: Underway, plan: SavePlan) -> None:
    """Do what may fail before the first byte. Independent."""
    if run.comm.is_root:
        publishing.check_ahead(run, plan, this.staged, overwrite=this.request.overwrite)
    assert this.held is not None
    phases.reached("2-write", run.comm.rank)
    if run.options.incremental:
        run.unchanged.mark(this.held.payloads)
        this.payloads = this.held.payloads
    this.non_finite = _non_finite(this.held.payloads, run.backend.threads) if run.options.nan_guard else ()


def _together(run: Run, this: Underway, write: Callable[[], Any]) -> Callable[[], Any]:
    """Write on this thread, all ranks together or none; what it came to is left to the part returned. Collective.

    A rank that fails before the first byte is waited for by nobody: the others do not begin either.
    """
    if this.held is None or this.plan is None:
        run.comm.allgather(False)
        return write
    plan = this.plan
    ready, is_ready = _tried(this, lambda: _get_ready(run, this, plan))
    return _tried(this, write)[0] if all(run.comm.allgather(is_ready)) else ready


def _tried(this: Underway, fn: Callable[[], Any]) -> tuple[Callable[[], Any], bool]:
    """Call a function; return one that returns or raises the same, and whether it returned. Independent."""
    try:
        value = fn()
    except BaseException as error:  # noqa: BLE001 - the other ranks must hear of it first
        failure = error
        if not isinstance(error, Exception):
            this.interrupt = error

        def fail() -> Any:
            raise failure

        return fail, False
    return lambda: value, True


def _base(run: Run) -> Path | None:
    """Return the newest committed step, which this one may link from. Independent."""
    step = run.lineage.step
    return run.directory / layout.step_dirname(step) if run.options.incremental and step is not None else None


def _non_finite(payloads: Sequence[Payload], threads: int) -> tuple[str, ...]:
    bad = (
        p.item.spec
        for p in payloads
        if not p.is_unchanged and native.count_nonfinite(p.data, p.item.spec.dtype, threads)
    )
    return tuple(dict.fromkeys(spec.name for spec in bad))


def _propose(run: Run, this: Underway, tree: StateTree) -> Callable[[], Proposal]:
    """Hold all of a state that does not fit the plan, until all ranks have a new one."""
    this.tree = tree
    whole = [WriteItem(d.spec, d.extent, 0, d.extent.n_elements) for d in tree.declarations]
    this.held = hold(tree, whole, run.arenas, run.backend.threads)
    return lambda: Proposal([*map(alike, tree.declarations), *_object_names(tree)], own_declarations(tree.declarations))


# -- 3 to 8: how it ends ---------------------------------------------------------------------------


def _ending(run: Run, this: Underway) -> tuple[Callable[[Sequence[Outcome]], Answer], Callable[[Outcome], None]]:
    return lambda outcomes: _conclude(run, this, outcomes), lambda outcome: _settle(run, this, outcome)


def _conclude(run: Run, this: Underway, outcomes: Sequence[Outcome]) -> Answer:
    """Publish what all ranks wrote, or say what failed. Root only."""
    phase, failures = "write", {rank: o.failure for rank, o in enumerate(outcomes) if o.failure is not None}
    values = [outcome.value for outcome in outcomes]
    is_new = any(isinstance(value, Proposal) for value in values)
    if not failures:
        try:
            if is_new:
                return _propose_to_all(run, this, _agreed(this.planned, values))
            phase = "publish"
            return _publish(run, this, values)
        except Exception as error:  # noqa: BLE001 - every rank will hear of it
            failures = {0: as_failure(error)}
    publishing.abandon(run, this.staged)
    # without a ticket the next save plans with all ranks
    ticket = None if is_new else publishing.next_ticket(run, this.planned.design)
    answer = Answer(None, phase, failures, ticket)
    if run.is_in_background:
        _log.error("hpcckpt: %s", collective_error(f"save step {this.request.step}: {phase}", failures))
    return answer


def _publish(run: Run, this: Underway, reports: Sequence[Report]) -> Answer:
    plan = this.plan
    assert this.content is not None
    assert plan is not None
    done = publishing.publish(run, this.staged, plan, this.content, reports, overwrite=this.request.overwrite)
    seconds = time.monotonic() - this.began
    saved = SavedStep(
        step=this.request.step,
        path=done.path,
        nbytes=sum(report.written.shared_nbytes + report.written.own_nbytes for report in reports),
        files=done.n_files,
        seconds=seconds,
        stall_seconds=this.stall_s if run.is_in_background else seconds,
        kept=done.n_kept,
        backend=run.backend.name,
        warnings=done.warnings,
        linked_nbytes=sum(report.written.linked_nbytes for report in reports),
    )
    return Answer(saved, ticket=publishing.next_ticket(run, this.planned.design))


def _propose_to_all(run: Run, this: Underway, proposals: tuple[tuple[Declaration, ...], ...]) -> Answer:
    """Design the new plan, and let the staging directory fit it. Root only."""
    assert this.tree is not None
    design = _design(run, this.tree.declarations, proposals)
    if design != this.staged.job.design:
        run.backend.reuse(this.staged.path, run.comm.size, design)
    return Answer(proposals=proposals, design=design)


def _agreed(planned: Planned, values: Sequence[Report | Proposal]) -> tuple[tuple[Declaration, ...], ...]:
    """Return what all ranks propose to plan with; raise unless they do. Root only."""
    known = [*map(alike, planned.declarations), *(f"object {name}" for name in planned.objects)]
    trees = [value.alike if isinstance(value, Proposal) else known for value in values]
    if any(tree != trees[0] for tree in trees):
        raise tree_mismatch(trees)
    own = {rank: value.own for rank, value in enumerate(values) if isinstance(value, Proposal)}
    if len(own) < len(values):  # the other ranks have written by the old plan, and let go of what they held
        raise ShardingError(
            f"rank {', '.join(map(str, own))} cut its shards anew and other ranks did not; "
            "nothing was published: save again, and all ranks plan anew"
        )
    return tuple(own.values())


def _settle(run: Run, this: Underway, outcome: Outcome) -> None:
    """Take in root's answer. Independent."""
    answer = outcome.value if outcome.failure is None else Answer(None, "publish", {0: outcome.failure})
    if answer.proposals:
        _plan_anew(run, this, answer.proposals, answer.design)
        return
    phases.reached("7-outcome", run.comm.rank)
    if answer.ticket is not None:
        run.tickets[this.number + run.options.max_in_flight] = answer.ticket
    if answer.saved is not None:
        if not run.comm.is_root:  # root took it in when it published the step
            run.lineage = run.lineage.after(this.staged.job)
        run.unchanged.committed(this.payloads)
    if this.held is not None and this.held.arena is not None:
        run.arenas.give_back(this.held.arena)
    this.held, this.tree, this.payloads = None, None, ()
    this.answer = answer
    if answer.saved is not None:
        for hear in tuple(run.listeners):
            hear(answer.saved)


def _plan_anew(run: Run, this: Underway, proposals: Sequence[Sequence[Declaration]], design: Any) -> None:
    """Plan what all ranks proposed, and write it. Independent."""
    tree, held = this.tree, this.held
    assert tree is not None
    assert held is not None

    def write() -> Report:
        this.plan = plan = plan_for(run.comm.rank, tree.declarations, proposals)
        this.planned = Planned(tree.declarations, tuple(tree.objects), plan, design)
        this.staged = replace(this.staged, job=replace(this.staged.job, design=design))
        this.held = cut(held, plan.items)
        return _write(run, this, plan, None)()

    this.matter = run.draining.start(2 * this.number + 1, this.matter.name, write, *_ending(run, this))
