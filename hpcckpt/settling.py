"""How a save ends: root concludes from what all ranks report, and each rank settles what root answers.

Root publishes the step, says what failed where, or, if the states have changed, has all ranks plan anew and write by
the new plan.  Where they wrote at several places, each gives its part its name first (:mod:`hpcckpt.closing`).  The
numbers are those of the commit protocol (:mod:`hpcckpt.collective.commit`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hpcckpt import phases, publishing
from hpcckpt.closing import announced, check_part, close_part, closing_of, settle_part
from hpcckpt.collective.planner import alike, plan_for, tree_mismatch
from hpcckpt.draining import Outcome
from hpcckpt.errors import Failure, ShardingError, as_failure, collective_error
from hpcckpt.holding import cut
from hpcckpt.manifest import Manifest
from hpcckpt.plan import Declaration
from hpcckpt.publishing import Report
from hpcckpt.run import Places, Planned, Run, SavedStep
from hpcckpt.underway import Answer, Closing, Proposal, Underway
from hpcckpt.writing import write_part

_log = logging.getLogger("hpcckpt")
MATTERS = 3
"""How many matters one save may be: its writing, the same by a new plan, and the closing of its parts."""


def ending(run: Run, this: Underway) -> tuple[Callable[[Sequence[Outcome]], Answer], Callable[[Outcome], None]]:
    """Return what root does with all outcomes (3 to 6, 8), and what each rank does with root's (7). Independent."""
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
            if run.places is not None:
                return _ask_to_close(run, run.places, this, values)
            return _publish(run, this, values, _compose(run, this, values))
        except Exception as error:  # noqa: BLE001 - every rank will hear of it
            failures = {0: as_failure(error)}
    return _give_up(run, this, phase, failures, is_new=is_new)


def _give_up(run: Run, this: Underway, phase: str, failures: Mapping[int, Failure], *, is_new: bool = False) -> Answer:
    """Remove what was written, and say what failed. Root only."""
    publishing.abandon(run, this.staged)
    # without a ticket the next save plans with all ranks
    ticket = None if is_new else publishing.next_ticket(run, this.planned.design)
    answer = Answer(None, phase, failures, ticket)
    run.journal.failed(this.request.step, phase, failures)
    if run.is_in_background:
        _log.error("hpcckpt: %s", collective_error(f"save step {this.request.step}: {phase}", failures))
    return answer


def _compose(run: Run, this: Underway, reports: Sequence[Report]) -> Manifest:
    """Check what all ranks wrote, and say what it is. Root only."""
    assert this.content is not None
    assert this.plan is not None
    if run.tier is not None:
        run.tier.look_ahead(this.request.step, overwrite=this.request.overwrite)
    return publishing.compose(run, this.staged, this.plan, this.content, reports)


def _ask_to_close(run: Run, places: Places, this: Underway, reports: Sequence[Report]) -> Answer:
    """Have the leaders of all places close their parts, if nothing stands in the way here. Root only."""
    manifest = _compose(run, this, reports)  # step 4a
    with run.workspace.changing:
        publishing.look_ahead(run, this.request.step, overwrite=this.request.overwrite)
    this.reports = reports
    return Answer(closing=closing_of(places, manifest, [report.written for report in reports]))


def _conclude_closing(run: Run, this: Underway, closing: Closing, outcomes: Sequence[Outcome]) -> Answer:
    """Give the step its name at root's place, if all others have their parts. Root only."""
    failures = {rank: o.failure for rank, o in enumerate(outcomes) if o.failure is not None}
    if not failures:
        try:
            if run.tier is not None:
                run.tier.look_ahead(this.request.step, overwrite=this.request.overwrite)
            check_part(run, this, closing)
            return _publish(run, this, this.reports, closing.manifest)  # step 4c
        except Exception as error:  # noqa: BLE001 - every rank will hear of it
            failures = {0: as_failure(error)}
    return _give_up(run, this, "publish", failures)


def _publish(run: Run, this: Underway, reports: Sequence[Report], manifest: Manifest) -> Answer:
    done = publishing.give_name(run, this.staged, manifest, overwrite=this.request.overwrite)
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
        tier="run" if run.tier is None else "scratch",
    )
    if run.tier is not None:
        run.tier.committed(saved.step)
    run.journal.saved(saved, this.content, this.staged.job)
    return Answer(saved, ticket=publishing.next_ticket(run, this.planned.design))


def _propose_to_all(run: Run, this: Underway, proposals: tuple[tuple[Declaration, ...], ...]) -> Answer:
    """Design the new plan, and let the staging directory fit it. Root only."""
    assert this.tree is not None
    design = publishing.design(run, this.tree.declarations, proposals)
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
    """Take in root's answer. Independent.

    It may be repeated after an interrupt, which is why `this.answer` is set last.
    """
    answer = outcome.value if outcome.failure is None else Answer(None, "publish", {0: outcome.failure})
    if answer.proposals:
        _plan_anew(run, this, answer.proposals, answer.design)
        return
    if answer.closing is not None:
        _close(run, this, answer.closing)
        return
    if this.answer is None:
        phases.reached("7-outcome", run.comm.rank)
        _take_in(run, this, answer)
        this.unheard = [] if answer.saved is None else list(reversed(run.listeners))
        this.answer = answer
    while answer.saved is not None and this.unheard:
        this.unheard.pop()(answer.saved)


def _take_in(run: Run, this: Underway, answer: Answer) -> None:
    """Keep or remove this rank's part, and begin what follows. Independent."""
    settle_part(run, this, is_committed=answer.saved is not None)
    if answer.ticket is not None:
        announced(run, answer.ticket.name)
        run.tickets[this.number + run.options.max_in_flight] = answer.ticket
    if answer.saved is not None:
        if not run.comm.is_root:  # root took it in when it published the step
            run.lineage = run.lineage.after(this.staged.job)
        run.unchanged.committed(this.payloads)
        if run.tier is not None:
            run.tier.begin(this.number, answer.saved, this.staged.job, overwrite=this.request.overwrite)
    held, this.held = this.held, None
    if held is not None and held.arena is not None:
        run.arenas.give_back(held.arena)
    this.tree, this.payloads = None, ()


def _close(run: Run, this: Underway, closing: Closing) -> None:
    """Close the part of this rank's place. Independent."""
    this.matter = run.draining.start(
        MATTERS * this.number + 2,
        this.matter.name,
        lambda: close_part(run, this, closing),
        lambda outcomes: _conclude_closing(run, this, closing, outcomes),
        lambda outcome: _settle(run, this, outcome),
    )


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
        return write_part(run, this, plan, None)()

    this.matter = run.draining.start(MATTERS * this.number + 1, this.matter.name, write, *ending(run, this))
