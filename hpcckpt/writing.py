"""What each rank does for a save: read the state, hold it still, and, on a thread, write its part of it.

A failure is kept for the thread to raise, because the other ranks have to hear of it.  The numbers are those of the
commit protocol (:mod:`hpcckpt.collective.commit`).
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, get_args

from hpcckpt import closing, layout, native, phases, publishing
from hpcckpt.backends.base import Backend, Payload
from hpcckpt.collective.planner import SavePlan, alike, fits, own_declarations, with_own
from hpcckpt.config import Level
from hpcckpt.errors import BackendError, StateError
from hpcckpt.holding import Held, hold, live, replica_checksums, replica_names
from hpcckpt.plan import WriteItem, WriteReport
from hpcckpt.publishing import Content, Report
from hpcckpt.run import Run
from hpcckpt.snapshot import StateTree, flatten, is_json
from hpcckpt.tensors import is_text
from hpcckpt.underway import Proposal, Request, Underway

# -- 0: the state ----------------------------------------------------------------------------------


def read_state(run: Run, state: Any, request: Request) -> StateTree:
    """Return the leaves of a state; refuse what cannot be saved, and what is asked for amiss. Independent."""
    phases.reached("0-plan", run.comm.rank)
    layout.as_step(request.step)
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


def object_names(tree: StateTree) -> list[str]:
    """Return what stands for the JSON objects of a state where ranks compare their states. Independent."""
    return [f"object {name}" for name in tree.objects]


# -- 2: its part -----------------------------------------------------------------------------------


def part_of(run: Run, this: Underway, state: Any, tree: StateTree | None) -> Callable[[], Report | Proposal]:
    """Hold the state still and return what is to be done with it; a failure is left to that. Independent."""
    try:
        tree = read_state(run, state, this.request) if tree is None else tree
        if run.comm.is_root:
            this.content = _content(tree, this.request)
        if not (fits(this.planned.declarations, tree.declarations) and this.planned.objects == tuple(tree.objects)):
            return _propose(run, this, tree)
        this.plan = with_own(this.planned.plan, tree.declarations)
        this.held = _hold(run, tree, this.plan.items)
        return write_part(run, this, this.plan, _replicas(run, this, tree))
    except BaseException as error:  # noqa: BLE001 - whatever it is, the other ranks are waiting for this one
        this.plan = None  # or `together` takes this rank for one that is ready
        return _raising(this, error)


def _raising(this: Underway, failure: BaseException) -> Callable[[], Any]:
    """Return a function that raises a failure, where the other ranks hear of it. Independent."""
    if not isinstance(failure, Exception):
        this.interrupt = failure

    def fail() -> Any:
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
            run.draining.wait_for_part(earlier.matter)
    if is_too_much or not run.is_in_background:
        return live(tree, items)
    return hold(tree, items, run.arenas, run.backend.threads)


def _replicas(run: Run, this: Underway, tree: StateTree) -> Callable[[], list[int]] | None:
    interval = run.options.check_replicas
    is_due = run.comm.size > 1 and interval > 0 and this.number % interval == 0
    return replica_checksums(tree) if is_due else None


def write_part(
    run: Run, this: Underway, plan: SavePlan, replicas: Callable[[], list[int]] | None
) -> Callable[[], Report]:
    """Return a function that writes what is held, and lets go of it. Independent."""

    def write() -> Report:
        rank = run.comm.rank
        if not run.is_together:  # else all ranks are ready
            _get_ready(run, this, plan)
        held, this.held = this.held, None
        assert held is not None
        try:
            written = run.backend.write(this.staged.job, this.staged.path, rank, held.payloads, _base(run))
            check_report(run.backend, this.staged.path, written)
        finally:
            if held.arena is not None:
                run.arenas.give_back(held.arena)
        if held.is_live and this.interrupt is not None:
            raise this.interrupt  # the caller did not wait, so the state may have changed
        phases.reached("3-report", rank)
        return Report(this.request.step, written, replicas() if replicas else None, this.non_finite)

    return write


def check_report(backend: Backend, path: Path, report: Any) -> None:
    """Compare what a backend of another package reports with the files that it wrote. Independent.

    Raises
    ------
    BackendError
        If it returned no report, or one with files that are missing or have another size.
    """
    if type(backend).__module__.partition(".")[0] == "hpcckpt":
        return
    if not isinstance(report, WriteReport):
        raise BackendError(f"backend {backend.name!r}: write() returned {type(report).__name__}, not a WriteReport")
    if type(backend).seal is not Backend.seal:
        return  # it completes the files, and reports them again
    for file in report.files:
        try:
            found = os.lstat(path / file.path).st_size
        except OSError as error:
            raise BackendError(f"backend {backend.name!r}: write() reported {file.path}: {error.strerror}") from error
        if found != file.nbytes:
            raise BackendError(
                f"backend {backend.name!r}: write() reported {file.nbytes} bytes for {file.path}, which has {found}"
            )


def _get_ready(run: Run, this: Underway, plan: SavePlan) -> None:
    """Do what may fail before the first byte. Independent."""
    if run.comm.is_root:
        publishing.check_ahead(run, plan, this.staged, overwrite=this.request.overwrite)
    if run.places is not None:
        closing.get_ready(run, this, plan)
    assert this.held is not None
    phases.reached("2-write", run.comm.rank)
    if run.options.incremental:
        run.unchanged.mark(this.held.payloads)
        this.payloads = this.held.payloads
    this.non_finite = _non_finite(this.held.payloads, run.backend.threads) if run.options.nan_guard else ()


def together(run: Run, this: Underway, write: Callable[[], Any]) -> Callable[[], Any]:
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
        return _raising(this, error), False
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
    return lambda: Proposal([*map(alike, tree.declarations), *object_names(tree)], own_declarations(tree.declarations))
