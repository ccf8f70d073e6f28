"""How a step is saved: make room, hold the state still, and let it drain while the program goes on.

What each rank holds is written on a thread and reported to root, which publishes the step on a thread of
its own (:mod:`hpcckpt.publishing`); the outcome reaches every rank the next time it polls or waits
(:mod:`hpcckpt.draining`).  The numbers are those of the commit protocol
(:mod:`hpcckpt.collective.commit`).

Only the first save plans collectively.  The plan holds for as long as names, shapes and dtypes stay; a rank whose
state has changed proposes the new one instead of writing, and when all do, they plan anew and go on.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

from hpcckpt import publishing
from hpcckpt.closing import announced
from hpcckpt.collective import commit
from hpcckpt.collective.planner import gather_declarations, plan_for
from hpcckpt.draining import Flag
from hpcckpt.errors import CollectiveError, HpcckptError, collective_error
from hpcckpt.plan import SaveJob, Ticket
from hpcckpt.run import Planned, Run, SavedStep
from hpcckpt.settling import MATTERS, ending
from hpcckpt.snapshot import StateTree
from hpcckpt.underway import Request, Underway
from hpcckpt.writing import object_names, part_of, read_state, together


def save(run: Run, state: Any, request: Request) -> Underway:
    """Begin to save a step: snapshot, and leave the rest to the background. Collective.

    Raises
    ------
    CollectiveError
        If an earlier save failed, or this one before its first byte; alike on every rank, and of the failure's own
        class too.
    """
    began = time.monotonic()
    begin_part(run)
    make_room(run, run.options.max_in_flight - 1)
    is_planned = run.n_saves in run.tickets and not run.is_together
    tree = None if is_planned else _begin(run, state, request)
    ticket = run.tickets[run.n_saves]
    assert run.planned is not None
    job = SaveJob(ticket.save_id, request.step, run.comm.size, design=run.planned.design)
    this = Underway(run.n_saves, request, commit.Staged(job, run.directory, ticket.name), began, run.planned)
    this.part = part_of(run, this, state, tree)
    if run.is_together:
        this.part = together(run, this, this.part)
    is_live = this.held is not None and this.held.is_live
    this.stall_s = time.monotonic() - began
    go = Flag()
    try:
        run.underway.append(this)  # from here on an interrupt (Ctrl-C) does not prevent it
        begin_part(run, go)
        go.set()  # last, for from now on the part wants the GIL too
        if this.interrupt is not None:
            raise this.interrupt  # now that the other ranks will receive its failure
        if is_live:
            run.draining.wait_for_part(this.matter)
    except BaseException as error:
        this.interrupt = error  # what it reads from the state itself may change from now on
        go.set()
        raise
    if not run.is_in_background:
        wait(run, this)
        outcome_of(this)
    return this


def begin_part(run: Run, go: Flag | None = None) -> None:
    """Begin this rank's part of the newest save, unless that was done. Independent."""
    if not run.underway:
        return
    this = run.underway[-1]
    run.n_saves = this.number + 1
    run.tickets.pop(this.number, None)
    if this.part is not None:
        this.matter = run.draining.start(
            MATTERS * this.number, f"save step {this.request.step}", this.part, *ending(run, this), go
        )
        this.part = None


# -- waiting -------------------------------------------------------------------------------------


def make_room(run: Run, n_left: int) -> None:
    """Wait until at most `n_left` saves are under way; raise, once, what an older one failed of. Collective.

    Which saves are waited for depends on nothing but their number, so all ranks raise the same.
    """
    while len(run.underway) > n_left:
        oldest = run.underway[0]
        wait(run, oldest)
        run.planned = oldest.planned
        try:
            if not oldest.is_told:
                outcome_of(oldest)
        finally:
            del run.underway[0]


def finish(run: Run) -> None:
    """Wait for all saves, whatever becomes of them; raise, once, what the first failed of. Collective."""
    failure: CollectiveError | None = None
    while run.underway:
        try:
            make_room(run, 0)
        except CollectiveError as error:
            if run.comm.calls.is_broken_off:
                raise
            failure = failure or error
    if failure is not None:
        raise failure


def wait(run: Run, this: Underway) -> None:
    """Wait until the outcome of a save is known here. Collective."""
    begin_part(run)
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


@contextlib.contextmanager
def failures_in_journal(run: Run, step: Any, phase: str, *, opens: bool) -> Iterator[None]:
    """Record in the journal what the block raises; open the run directory for that if it `opens`. Independent.

    A directory that another job holds, or that cannot be written, has no record.
    """
    try:
        yield
    except HpcckptError as error:
        if run.comm.is_root:
            owner = run if run.tier is None else run.tier.home
            with contextlib.suppress(HpcckptError):
                if opens:
                    publishing.open_for_writing(owner)
            if owner.lock is not None:
                run.journal.begin(n_ranks=run.comm.size, backend=run.backend.name)
            run.journal.failed_by(step, phase, error)
        raise


def _begin(run: Run, state: Any, request: Request) -> StateTree:
    """Plan, and open the run directory; the first save does, and one for which nothing is prepared. Collective."""
    where = f"save step {request.step}"
    with failures_in_journal(run, request.step, "begin", opens=True):
        tree = run.comm.agree(f"{where}: read state", lambda: read_state(run, state, request))
        named = [f"step {request.step}", *object_names(tree)]
        gathered = gather_declarations(run.comm, tree.declarations, named)
        plan = plan_for(run.comm.rank, tree.declarations, gathered)
    n_tickets = 0 if run.n_saves in run.tickets else 1 if run.n_saves else run.options.max_in_flight

    def begin() -> tuple[Any, list[Ticket]]:
        publishing.regain(run)
        publishing.open_for_writing(run)
        publishing.look_ahead(run, request.step, overwrite=request.overwrite)
        if run.tier is not None:
            run.tier.look_ahead(request.step, overwrite=request.overwrite)
        publishing.check_space(run, plan)
        design = publishing.design(run, tree.declarations, gathered)
        return design, [publishing.prepare(run, design) for _ in range(n_tickets)]

    with failures_in_journal(run, request.step, "begin", opens=False):
        design, tickets = run.comm.on_root(f"{where}: begin", begin)
    run.planned = Planned(tree.declarations, tuple(tree.objects), plan, design)
    run.tickets.update(enumerate(tickets, start=run.n_saves))
    for ticket in tickets:
        announced(run, ticket.name)
    return tree
