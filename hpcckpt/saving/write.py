"""What each rank does for a save: read the state, take a snapshot and, on a thread, write its part of it.

The thread raises what failed in the snapshot, so that the other ranks receive it.  The numbers are those of the commit
protocol (:mod:`hpcckpt.rundir.commit`).
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np

from hpcckpt import native
from hpcckpt.backends.base import Backend, Payload, is_built_in
from hpcckpt.collective.outcomes import Captured, capture
from hpcckpt.collective.planner import SavePlan, fits, own_declarations, with_local_sizes
from hpcckpt.core import failpoints
from hpcckpt.core.dtypes import LONG_DOUBLES, numpy_dtype
from hpcckpt.core.options import Level
from hpcckpt.core.plan import WriteItem, WriteReport
from hpcckpt.core.system import FileSystem
from hpcckpt.core.tensors import is_text
from hpcckpt.errors import BackendError, StateError
from hpcckpt.format import layout
from hpcckpt.rundir.reports import Content, RankReport
from hpcckpt.saving import node_local
from hpcckpt.saving.pending import Contribution, InFlightSave, ReplanRequest, Request, Timing, signatures
from hpcckpt.saving.save_queue import SaveQueue
from hpcckpt.saving.snapshot import Snapshot, cut, replica_checksums, replica_names, take, view
from hpcckpt.state.arrays import PerRankJsonLeaf, has_nan
from hpcckpt.state.tree import StateTree, flatten, is_json

# -- 0: the state ----------------------------------------------------------------------------------


def read_state(queue: SaveQueue, state: Any, request: Request) -> StateTree:
    """Return the leaves of a state; refuse what cannot be saved, and wrong arguments. Independent."""
    failpoints.reached("0-plan", queue.comm.rank)
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


# -- 2: snapshot -----------------------------------------------------------------------------------


def take_snapshot(
    queue: SaveQueue, this: InFlightSave, state: Any, tree: StateTree | None, began: float
) -> Contribution:
    """Read the state of this rank, unless `save` has, and take a snapshot of what is to be written. Independent.

    A state that does not fit the save plan is copied whole, until all ranks have a new plan.
    """
    tree = read_state(queue, state, this.request) if tree is None else tree
    content = _content(tree, this.request) if queue.comm.is_root else None
    planned, objects = this.planned, tuple(tree.objects)
    plan: SavePlan | None = None
    replicas = None
    if fits(planned.declarations, tree.declarations) and planned.objects == objects:
        plan = with_local_sizes(planned.plan, tree.declarations)
        replicas = _replicas(queue, this, tree)
        snapshot = _take_or_view(queue, tree, plan.items)
    else:
        whole = [WriteItem(d.spec, d.extent, 0, d.extent.n_elements) for d in tree.declarations]
        snapshot = take(tree, whole, queue.arenas, queue.backend.threads)
    timing = Timing(began, queue.comm.clock.monotonic() - began)
    not_numbers = tuple(_not_numbers(tree, is_root=queue.comm.is_root)) if queue.options.nan_guard else ()
    return Contribution(tree.declarations, objects, plan, snapshot, content, replicas, timing, not_numbers)


def _content(tree: StateTree, request: Request) -> Content:
    objects = {"state": {name: leaf.read() for name, leaf in tree.objects.items()}, "user": dict(request.objects)}
    metrics = {name: float(value) for name, value in request.metrics.items()}
    return Content(metrics, copy.deepcopy(objects), replica_names(tree), request.level)


def _not_numbers(tree: StateTree, *, is_root: bool) -> Iterator[str]:
    """Yield the names of JSON values with a NaN; an infinite one may be a bound, such as ``best``. Independent."""
    if is_root:
        yield from (name for name, leaf in tree.objects.items() if has_nan(leaf.read()))
    own = (leaf for leaf in tree.tensors.values() if isinstance(leaf, PerRankJsonLeaf))
    yield from (leaf.base for leaf in own if has_nan(leaf.value.value))


def _take_or_view(queue: SaveQueue, tree: StateTree, items: Sequence[WriteItem]) -> Snapshot:
    """Take a snapshot if it may use that much memory, or use the state's own memory while the caller waits."""
    limit, is_too_much = queue.options.max_bytes_in_flight, False
    if limit is not None:
        is_too_much = sum(item.nbytes for item in items) > limit
        queue.wait_for_local()
    if is_too_much or not queue.is_in_background:
        return view(tree, items, queue.arenas, queue.backend.threads)
    return take(tree, items, queue.arenas, queue.backend.threads)


def _replicas(queue: SaveQueue, this: InFlightSave, tree: StateTree) -> Callable[[], list[int]] | None:
    interval = queue.options.check_replicas
    is_due = queue.comm.size > 1 and interval > 0 and this.number % interval == 0
    return replica_checksums(tree) if is_due else None


# -- 2: write --------------------------------------------------------------------------------------


def write(queue: SaveQueue, this: InFlightSave, taken: Captured[Contribution]) -> RankReport | ReplanRequest:
    """Write what this rank contributes, or request a new plan; raise what failed in the snapshot. Independent."""
    contribution = taken.get()
    if contribution.plan is None:
        declarations = contribution.declarations
        return ReplanRequest(signatures(declarations, contribution.objects), own_declarations(declarations))
    return _write(queue, this, contribution, _get_ready(queue, this, contribution))


def write_together(queue: SaveQueue, this: InFlightSave, taken: Captured[Contribution]) -> Captured[Any]:
    """Write on this thread, on all ranks or, if one of them fails before its first byte, on none. Collective."""
    ready = capture(lambda: _get_ready(queue, this, taken.get()))
    if not queue.comm.allreduce(ready.error is None, operator.and_):
        return ready
    return capture(lambda: _write(queue, this, taken.get(), ready.get()))


def write_replanned(queue: SaveQueue, this: InFlightSave, plan: SavePlan) -> RankReport:
    """Write, by a new plan, what was copied whole. Independent."""
    assert this.contribution is not None
    assert this.contribution.snapshot is not None
    this.contribution.plan, this.contribution.snapshot = plan, cut(this.contribution.snapshot, plan.items)
    return _write(queue, this, this.contribution, _get_ready(queue, this, this.contribution))


def _get_ready(queue: SaveQueue, this: InFlightSave, contribution: Contribution) -> tuple[str, ...]:
    """Do what may fail before the first byte; return the tensors that `nan_guard` refuses. Independent."""
    assert contribution.plan is not None
    assert contribution.snapshot is not None
    may_link = queue.block_records.may_link
    if queue.comm.is_root:
        overwrite = this.request.overwrite
        queue.rundir.check_before_writing(contribution.plan, this.staged, overwrite=overwrite, may_link=may_link)
    node_local.stage_part(queue.rundir, this, contribution.plan, may_link=may_link)
    failpoints.reached("2-write", queue.comm.rank)
    payloads = contribution.snapshot.payloads
    if queue.options.incremental:
        queue.block_records.mark(this.number, payloads)
    found = _non_finite(payloads, queue.backend.threads) if queue.options.nan_guard else ()
    return (*contribution.not_numbers, *found)


def _write(queue: SaveQueue, this: InFlightSave, contribution: Contribution, non_finite: tuple[str, ...]) -> RankReport:
    """Write the snapshot, and release it. Independent."""
    rank, snapshot = queue.comm.rank, contribution.snapshot
    assert snapshot is not None
    contribution.snapshot = None
    try:
        written = queue.backend.write(this.staged.job, this.staged.path, rank, snapshot.payloads, _base(queue))
        check_report(queue.backend, this.staged.path, written, queue.rundir.system.files)
    finally:
        snapshot.release(queue.arenas)
    if snapshot.interrupt is not None:
        raise snapshot.interrupt
    failpoints.reached("3-report", rank)
    replicas = contribution.replicas() if contribution.replicas else None
    return RankReport(this.request.step, written, replicas, non_finite)


def _base(queue: SaveQueue) -> Path | None:
    """Return the newest committed step, which this one may link from. Independent."""
    step = queue.rundir.lineage.step
    return queue.rundir.path / layout.step_dirname(step) if queue.options.incremental and step is not None else None


def _non_finite(payloads: Sequence[Payload], threads: int) -> tuple[str, ...]:
    bad = (p.item.spec for p in payloads if not p.is_unchanged and _count_nonfinite(p, threads))
    return tuple(dict.fromkeys(spec.name for spec in bad))


def _count_nonfinite(payload: Payload, threads: int) -> int:
    token = payload.item.spec.dtype
    if token not in LONG_DOUBLES:  # which only NumPy can check
        return native.count_nonfinite(payload.data, token, threads)
    return int(np.count_nonzero(~np.isfinite(payload.data.view(numpy_dtype(token)))))


def check_report(backend: Backend, path: Path, report: Any, files: FileSystem) -> None:
    """Compare what a backend of another package reports with the files that it wrote. Independent.

    Raises
    ------
    BackendError
        If it returned no report, or one with files that are missing or have another size.
    """
    if is_built_in(backend):
        return
    if not isinstance(report, WriteReport):
        raise BackendError(f"backend {backend.name!r}: write() returned {type(report).__name__}, not a WriteReport")
    if type(backend).seal is not Backend.seal:
        return  # it completes the files, and reports them again
    for file in report.files:
        try:
            found = files.lstat(path / file.path).st_size
        except OSError as error:
            raise BackendError(f"backend {backend.name!r}: write() reported {file.path}: {error.strerror}") from error
        if found != file.nbytes:
            raise BackendError(
                f"backend {backend.name!r}: write() reported {file.nbytes} bytes for {file.path}, which has {found}"
            )
