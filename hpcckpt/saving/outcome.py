"""How a save ends: root commits what all ranks wrote, and each rank applies root's outcome.

Root commits the step, reports what failed where, or, if the states have changed, has all ranks plan again and write by
the new plan.  Where they wrote on the disks of several nodes, each node commits its part first
(:mod:`hpcckpt.saving.node_local`).  The numbers are those of the commit protocol (:mod:`hpcckpt.rundir.commit`).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from hpcckpt.collective.outcomes import Outcome, failures_of, reduce_outcomes
from hpcckpt.collective.planner import plan_for, tree_mismatch
from hpcckpt.core import failpoints
from hpcckpt.core.plan import Declaration
from hpcckpt.core.results import SavedStep
from hpcckpt.errors import Failure, ShardingError, collective_error
from hpcckpt.format.manifest import Manifest
from hpcckpt.rundir.reports import RankReport
from hpcckpt.saving.node_local import check_part, commit_part, finish_part, leaders_of_files, reserve_part
from hpcckpt.saving.pending import (
    InFlightSave,
    NodeParts,
    Planned,
    ReplanRequest,
    SaveOutcome,
    SaveState,
    signatures,
)
from hpcckpt.saving.save_queue import TASKS_PER_SAVE, SaveQueue
from hpcckpt.saving.write import write_replanned

_log = logging.getLogger("hpcckpt")


# -- commit: root, with the outcomes of all ranks --------------------------------------------------


def commit(queue: SaveQueue, this: InFlightSave, outcomes: Sequence[Outcome]) -> SaveOutcome:
    """Commit what all ranks wrote (3 to 6, 8), or return what failed or is left to do. Root only."""
    values = [outcome.value for outcome in outcomes]
    is_new = any(isinstance(value, ReplanRequest) for value in values)

    def next_phase() -> SaveOutcome:
        if is_new:
            return _replan(queue, this, _agreed(this.planned, values))
        if not queue.rundir.nodes.is_shared:
            return _commit_parts(queue, this, values)
        return _commit_step(queue, this, _compose(queue, this, values), *_nbytes_of(values))

    result, failures = reduce_outcomes(outcomes, next_phase)
    phase = "write" if is_new or failures_of(outcomes) else "commit"
    return result or _abort(queue, this, phase, failures, is_new=is_new)


def _commit_after_parts(
    queue: SaveQueue, this: InFlightSave, parts: NodeParts, outcomes: Sequence[Outcome]
) -> SaveOutcome:
    """Commit the step on root's node, if all other nodes have committed their parts (4c). Root only."""

    def commit_root() -> SaveOutcome:
        if queue.drains is not None:
            queue.drains.check_conflicts(this.request.step, overwrite=this.request.overwrite)
        check_part(queue.rundir, this, parts)
        return _commit_step(queue, this, parts.manifest, parts.nbytes, parts.linked_nbytes)

    result, failures = reduce_outcomes(outcomes, commit_root)
    return result or _abort(queue, this, "commit", failures)


def _nbytes_of(reports: Sequence[RankReport]) -> tuple[int, int]:
    """Return how many bytes all ranks wrote, and how many of them they linked from an earlier step."""
    nbytes = sum(report.written.shared_nbytes + report.written.own_nbytes for report in reports)
    return nbytes, sum(report.written.linked_nbytes for report in reports)


def _abort(
    queue: SaveQueue, this: InFlightSave, phase: str, failures: Mapping[int, Failure], *, is_new: bool = False
) -> SaveOutcome:
    """Remove what was written, and log what failed. Root only."""
    queue.rundir.abort(this.staged)
    # without a slot the next save plans with all ranks
    slot = None if is_new else queue.rundir.next_slot(this.planned.file_layout)
    result = SaveOutcome(None, phase, failures, slot, this.request.step)
    queue.rundir.journal.failed(this.request.step, phase, failures)
    if queue.is_in_background:
        _log.error("hpcckpt: %s", collective_error(f"save step {this.request.step}: {phase}", failures))
    return result


def _compose(queue: SaveQueue, this: InFlightSave, reports: Sequence[RankReport]) -> Manifest:
    """Check what all ranks wrote, and return the manifest of it. Root only."""
    contribution = this.contribution
    assert contribution is not None
    assert contribution.content is not None
    assert contribution.plan is not None
    if queue.drains is not None:
        queue.drains.check_conflicts(this.request.step, overwrite=this.request.overwrite)
    return queue.rundir.compose(this.staged, contribution.plan, contribution.content, reports)


def _commit_parts(queue: SaveQueue, this: InFlightSave, reports: Sequence[RankReport]) -> SaveOutcome:
    """Have the leaders of all nodes commit their parts, if no step on root's node prevents that (4a). Root only."""
    manifest = _compose(queue, this, reports)
    with queue.rundir.workspace.commit_mutex:
        queue.rundir.check_conflicts(this.request.step, overwrite=this.request.overwrite)
    at = leaders_of_files(queue.rundir.nodes, manifest, [report.written for report in reports])
    return SaveOutcome(parts=NodeParts(manifest, at, *_nbytes_of(reports)))


def _commit_step(
    queue: SaveQueue, this: InFlightSave, manifest: Manifest, nbytes: int, linked_nbytes: int
) -> SaveOutcome:
    with contextlib.nullcontext() if queue.drains is None else queue.drains.newer_aside(this.request.step):
        done = queue.rundir.commit(this.staged, manifest, overwrite=this.request.overwrite)
    contribution = this.contribution
    assert contribution is not None
    seconds = queue.comm.clock.monotonic() - contribution.timing.began
    saved = SavedStep(
        step=this.request.step,
        path=done.path,
        nbytes=nbytes,
        files=done.n_files,
        seconds=seconds,
        stall_seconds=contribution.timing.stall_s if queue.is_in_background else seconds,
        kept=done.n_kept,
        backend=queue.backend.name,
        warnings=done.warnings,
        linked_nbytes=linked_nbytes,
        tier="run" if queue.drains is None else "scratch",
    )
    if queue.drains is not None:
        queue.drains.committed(saved.step)
    queue.rundir.journal.saved(saved, contribution.content, this.staged.job)
    return SaveOutcome(saved, slot=queue.rundir.next_slot(this.planned.file_layout))


def _replan(queue: SaveQueue, this: InFlightSave, proposals: tuple[tuple[Declaration, ...], ...]) -> SaveOutcome:
    """Make the file layout of the new plan, and let the staging directory fit it. Root only."""
    assert this.contribution is not None
    file_layout = queue.rundir.file_layout(this.contribution.declarations, proposals)
    if file_layout != this.staged.job.file_layout:
        queue.backend.reuse(this.staged.path, queue.comm.size, file_layout)
    return SaveOutcome(proposals=proposals, file_layout=file_layout)


def _agreed(planned: Planned, values: Sequence[RankReport | ReplanRequest]) -> tuple[tuple[Declaration, ...], ...]:
    """Return what all ranks request to plan with; raise unless they do. Root only."""
    known = signatures(planned.declarations, planned.objects)
    trees = [value.signatures if isinstance(value, ReplanRequest) else known for value in values]
    if any(tree != trees[0] for tree in trees):
        raise tree_mismatch(trees)
    own = {rank: value.own for rank, value in enumerate(values) if isinstance(value, ReplanRequest)}
    if len(own) < len(values):  # the other ranks have written by the old plan, and released their snapshots
        raise ShardingError(
            f"rank {', '.join(map(str, own))} changed its shards and other ranks did not; "
            "nothing was committed: save again, and all ranks make a new plan"
        )
    return tuple(own.values())


# -- report: each rank, with root's outcome --------------------------------------------------------


def report(queue: SaveQueue, this: InFlightSave, outcome: Outcome) -> None:
    """Apply root's outcome (7). Independent.

    It may be repeated after an interrupt, which is why the state changes last.
    """
    result = outcome.value if outcome.failure is None else SaveOutcome(None, "commit", {0: outcome.failure})
    if result.proposals:
        _write_again(queue, this, result.proposals, result.file_layout)
    elif result.parts is not None:
        _commit_part(queue, this, result.parts)
    else:
        if not this.has_ended:
            failpoints.reached("7-outcome", queue.comm.rank)
            _end(queue, this, result)
            this.outcome = result
            this.state = SaveState.ENDED
        if result.saved is not None:
            queue.listeners.call(this, result.saved)


def _end(queue: SaveQueue, this: InFlightSave, result: SaveOutcome) -> None:
    """Keep or remove this node's part, begin the drain, and release what the save holds. Independent."""
    finish_part(queue.rundir, this, is_committed=result.saved is not None)
    if result.slot is not None:
        reserve_part(queue.rundir, result.slot.name)
        queue.slots[this.number + queue.options.max_in_flight] = result.slot
    queue.block_records.ended(this.number, is_committed=result.saved is not None)
    if result.saved is not None:
        if not queue.comm.is_root:  # root did when it committed the step
            queue.rundir.lineage = queue.rundir.lineage.after(this.staged.job)
        if queue.drains is not None:
            overwrite = this.request.overwrite
            this.drain = queue.drains.start_drain(this.number, result.saved, this.staged.job, overwrite=overwrite)
    if this.contribution is not None and this.contribution.snapshot is not None:
        this.contribution.snapshot.release(queue.arenas)
    this.contribution = None


def _commit_part(queue: SaveQueue, this: InFlightSave, parts: NodeParts) -> None:
    """Begin to commit the part of this rank's node (4b). Independent."""
    assert this.task is not None
    this.task = queue.background.begin(
        queue.background.prepare(
            TASKS_PER_SAVE * this.number + 2,
            this.task.name,
            lambda: commit_part(queue, this, parts),
            lambda outcomes: _commit_after_parts(queue, this, parts, outcomes),
            lambda outcome: report(queue, this, outcome),
        )
    )
    this.state = SaveState.COMMITTING_PARTS


def _write_again(
    queue: SaveQueue, this: InFlightSave, proposals: Sequence[Sequence[Declaration]], file_layout: Any
) -> None:
    """Begin to write by the plan that all ranks requested. Independent."""

    def write() -> RankReport:
        assert this.contribution is not None
        declarations, objects = this.contribution.declarations, this.contribution.objects
        plan = plan_for(queue.comm.rank, declarations, proposals)
        this.planned = Planned(declarations, objects, plan, file_layout)
        this.staged = replace(this.staged, job=replace(this.staged.job, file_layout=file_layout))
        return write_replanned(queue, this, plan)

    assert this.task is not None
    this.task = queue.background.begin(
        queue.background.prepare(
            TASKS_PER_SAVE * this.number + 1,
            this.task.name,
            write,
            lambda outcomes: commit(queue, this, outcomes),
            lambda outcome: report(queue, this, outcome),
        )
    )
    this.state = SaveState.WRITING_AGAIN
