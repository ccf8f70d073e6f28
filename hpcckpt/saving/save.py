"""How a step is saved: plan, snapshot, write, commit, report.

The calling thread plans and takes the snapshot.  A thread of each rank writes the snapshot and reports to root, and a
thread of root commits the step (:mod:`hpcckpt.rundir.run_directory`); every rank receives the outcome the next time it
polls or waits (:mod:`hpcckpt.collective.background`).  The numbers are those of the commit protocol
(:mod:`hpcckpt.rundir.commit`).

Only the first save plans collectively.  The plan is used as long as names, shapes and dtypes do not change; a rank
whose state has changed requests a new plan instead of writing, and when all do, they plan again and write.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from hpcckpt.collective.outcomes import capture
from hpcckpt.collective.planner import gather_declarations, plan_for
from hpcckpt.core.plan import StagingSlot
from hpcckpt.errors import HpcckptError
from hpcckpt.rundir.lock import longest_watch_s
from hpcckpt.saving.node_local import reserve_part
from hpcckpt.saving.outcome import commit, report
from hpcckpt.saving.pending import InFlightSave, Planned, Request, object_names
from hpcckpt.saving.save_queue import SaveQueue
from hpcckpt.saving.write import read_state, take_snapshot, write, write_together
from hpcckpt.state.tree import StateTree


def save(queue: SaveQueue, state: Any, request: Request) -> InFlightSave:
    """Take a snapshot of the state, and save it in the background. Collective.

    Raises
    ------
    CollectiveError
        If an earlier save failed, or this one before its first byte: the same on every rank, and also of the
        failure's own class.
    """
    began = queue.comm.clock.monotonic()
    queue.begin_newest()
    queue.make_room(queue.options.max_in_flight - 1)
    tree = plan(queue, state, request)
    this = queue.new_save(request)
    taken = capture(lambda: take_snapshot(queue, this, state, tree, began))
    this.contribution = taken.value
    written = write_together(queue, this, taken) if queue.is_together else None
    queue.begin(
        this,
        local=(lambda: write(queue, this, taken)) if written is None else written.get,
        reduce=lambda outcomes: commit(queue, this, outcomes),
        on_result=lambda outcome: report(queue, this, outcome),
        interrupt=(written or taken).interrupt,
    )
    if not queue.is_in_background:
        queue.wait(this)
        this.result()
    return this


# -- 0 and 1: the first save -----------------------------------------------------------------------


def plan(queue: SaveQueue, state: Any, request: Request) -> StateTree | None:
    """Plan with all ranks, if no earlier save has; return the state as it was read for that. Collective."""
    if queue.n_saves in queue.slots and not queue.is_together:
        return None
    where = f"save step {request.step}"
    with failures_in_journal(queue, request.step, "begin", opens=True):
        tree = queue.comm.agree(f"{where}: read state", lambda: read_state(queue, state, request))
        named = [f"step {request.step}", *object_names(tree.objects)]
        gathered = gather_declarations(queue.comm, tree.declarations, named)
        planned = plan_for(queue.comm.rank, tree.declarations, gathered)
    n_slots = 0 if queue.n_saves in queue.slots else 1 if queue.n_saves else queue.options.max_in_flight

    def begin() -> tuple[Any, list[StagingSlot]]:
        queue.rundir.reacquire()
        queue.rundir.open()
        queue.rundir.check_conflicts(request.step, overwrite=request.overwrite)
        if queue.drains is not None:
            queue.drains.check_conflicts(request.step, overwrite=request.overwrite)
        queue.rundir.check_space(planned)
        file_layout = queue.rundir.file_layout(tree.declarations, gathered)
        return file_layout, [queue.rundir.prepare_slot(file_layout) for _ in range(n_slots)]

    with failures_in_journal(queue, request.step, "begin", opens=False), queue.comm.allowing(longest_watch_s()):
        file_layout, slots = queue.comm.on_root(f"{where}: begin", begin)
    queue.planned = Planned(tree.declarations, tuple(tree.objects), planned, file_layout)
    queue.slots.update(enumerate(slots, start=queue.n_saves))
    for slot in slots:
        reserve_part(queue.rundir, slot.name)
    return tree


@contextlib.contextmanager
def failures_in_journal(queue: SaveQueue, step: Any, phase: str, *, opens: bool) -> Iterator[None]:
    """Record in the journal what the block raises; open the run directory for that if it `opens`. Independent.

    A directory that another job holds, or that cannot be written, has no record.
    """
    try:
        yield
    except HpcckptError as error:
        if queue.comm.is_root:
            owner = queue.rundir if queue.drains is None else queue.drains.persistent
            with contextlib.suppress(HpcckptError):
                if opens:
                    owner.open()
            if owner.lock is not None:
                queue.rundir.journal.begin(n_ranks=queue.comm.size, backend=queue.backend.name)
            queue.rundir.journal.failed_by(step, phase, error)
        raise
