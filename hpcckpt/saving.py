"""How a step is saved, from state to committed checkpoint. The numbers are the commit protocol's."""

from __future__ import annotations

import contextlib
import hashlib
import platform
import secrets
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from hpcckpt import layout, native, phases
from hpcckpt._version import __version__
from hpcckpt.backends.base import Payload
from hpcckpt.collective import commit
from hpcckpt.collective.communicator import Communicator
from hpcckpt.collective.planner import SavePlan, plan_save
from hpcckpt.discovery import inspect_step, newest_restorable, step_numbers
from hpcckpt.errors import (
    HpcckptError,
    NewerStepError,
    ReplicaMismatchError,
    StateError,
    StepExistsError,
    as_failure,
    from_os_error,
)
from hpcckpt.lock import RunLock
from hpcckpt.manifest import Manifest
from hpcckpt.plan import FileRecord, SaveJob, WriteReport
from hpcckpt.retention import apply_retention, sweep
from hpcckpt.run import Lineage, Run, SavedStep
from hpcckpt.snapshot import StateTree, as_bytes, flatten, is_json
from hpcckpt.tensors import is_text, itemsize


class Request(NamedTuple):
    """What the caller asks to save, beside the state."""

    step: int
    metrics: Mapping[str, float]
    objects: Mapping[str, Any]
    overwrite: bool


def save(run: Run, state: Any, request: Request) -> SavedStep:
    """Save a step: snapshot, plan, stage, write, publish, retire. Collective.

    Raises
    ------
    CollectiveError
        If any rank failed in any phase; alike on every rank, and of the failure's own class too.
    """
    began = time.monotonic()
    tree, plan = _plan(run, state, request)
    staged, way = _begin(run, plan, request)
    try:
        reports = commit.write(run.comm, run.backend, staged, lambda: _payloads(tree, plan))
        path, n_files = _publish(run, staged, plan, _Content(request, reports, tree), way)
    except BaseException:
        if run.comm.is_root:
            commit.abandon(staged)
        raise
    phases.reached("7-outcome", run.comm.rank)
    _advance(run, staged.job)
    kept, warnings = _retire(run, staged)
    seconds = time.monotonic() - began
    return SavedStep(request.step, path, plan.nbytes, n_files, seconds, seconds, kept, run.backend.name, warnings)


# -- 0: what is there to save --------------------------------------------------------------------


def _plan(run: Run, state: Any, request: Request) -> tuple[StateTree, SavePlan]:
    where = f"save step {request.step}"

    def read_state() -> StateTree:
        phases.reached("0-plan", run.comm.rank)
        return _checked_state(state, request)

    tree = run.comm.agree(f"{where}: read state", read_state)
    named = [f"step {request.step}", *(f"object {name}" for name in tree.objects)]
    plan = plan_save(run.comm, tree.declarations, named)
    interval = run.options.check_replicas
    if interval and run.n_saves % interval == 0:
        check_replicas(run.comm, tree, where)
    return tree, plan


def _checked_state(state: Any, request: Request) -> StateTree:
    if not 0 <= request.step <= layout.MAX_STEP:
        raise StateError(f"step {request.step} is not between 0 and {layout.MAX_STEP}")
    wrong = [name for name, value in request.metrics.items() if not _is_metric(name, value)]
    if wrong:
        raise StateError(f"metrics {wrong} are not numbers: metrics map names to numbers")
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


def replica_checksums(tree: StateTree) -> dict[str, int]:
    """Return the CRC32C of every replicated tensor. Independent."""
    replicated = {name: leaf for name, leaf in tree.tensors.items() if leaf.declaration.spec.kind == "replicated"}
    return {name: native.crc32c(as_bytes(leaf.read())) for name, leaf in replicated.items()}


def check_replicas(comm: Communicator, tree: StateTree, where: str) -> None:
    """Compare replicated tensors over ranks by digest. Collective.

    Raises
    ------
    ReplicaMismatchError
        Naming the first differing tensors and the ranks that differ from rank 0.
    """
    if comm.size == 1:
        return
    own = comm.agree(f"{where}: compare replicas", lambda: replica_checksums(tree))
    digest = hashlib.blake2b(repr(own).encode(), digest_size=16).digest()
    if len(set(comm.allgather(digest))) == 1:
        return
    every = comm.allgather(own)
    differing = {
        name: [rank for rank, theirs in enumerate(every) if theirs[name] != every[0][name]] for name in every[0]
    }
    shown = [f"{name!r} on rank {', '.join(map(str, ranks))}" for name, ranks in differing.items() if ranks]
    more = f" and {len(shown) - 5} more" if len(shown) > 5 else ""
    raise ReplicaMismatchError(
        f"{where}: tensors that should be equal on all ranks differ from rank 0's: {'; '.join(shown[:5])}{more}; "
        "broadcast them before training, or wrap them in hpcckpt.PerRank or hpcckpt.RootOnly"
    )


# -- 1: begin ------------------------------------------------------------------------------------


def _begin(run: Run, plan: SavePlan, request: Request) -> tuple[commit.Staged, commit.Way]:
    def begin() -> tuple[commit.Staged, commit.Way]:
        open_for_writing(run)
        way = _look_ahead(run, request)
        commit.check_space(run.directory, plan, run.comm.size)
        job = SaveJob(secrets.token_hex(16), request.step, run.comm.size)
        return commit.begin(run.backend, job, run.directory), way

    return run.comm.on_root(f"save step {request.step}: begin", begin)


def open_for_writing(run: Run) -> None:
    """Make the run directory, take its lock, and sweep what killed jobs left. Root only.

    Raises
    ------
    LockedError
        If another job holds the lock.
    LockLostError
        If another job took it over from us: nothing in the directory is touched then.
    """
    if run.lock is not None:
        run.lock.check()
        return
    try:
        make_directory(run.directory)
        run.lock = RunLock.take(run.directory, run.options.lock_expiry_s)
    except OSError as error:
        raise error if isinstance(error, HpcckptError) else from_os_error(error, "open run directory") from error
    with contextlib.suppress(OSError):  # what cannot be removed is tried again, and told of, after the save
        sweep(run.directory)


def make_directory(path: Path) -> None:
    """Make a directory and its parents, durably. Root only."""
    if path.is_dir():
        return
    make_directory(path.parent)
    path.mkdir(exist_ok=True)
    native.fsync_dir(str(path.parent))


def _look_ahead(run: Run, request: Request) -> commit.Way:
    """Find what stands where the step will go, and refuse what may not be moved. Root only.

    Nothing is moved before the new step is whole and durable: a save that fails leaves all as it was.
    """
    newer = _newer_steps(run, request.step)
    if newer and run.options.on_newer == "error":
        raise NewerStepError(
            f"step {request.step} would go below step {newer[-1]}, which stands in {run.directory} and is not "
            'what this run goes on from: restore it first, pass on_newer="aside", or use another directory'
        )
    if request.step in newer or request.step not in step_numbers(run.directory):
        return commit.Way(newer)
    is_good = inspect_step(run.directory, request.step).is_restorable
    if is_good and not request.overwrite:
        raise StepExistsError(f"step {request.step} is in {run.directory} already; pass overwrite=True to replace it")
    return commit.Way(newer, "good" if is_good else "bad")


def _newer_steps(run: Run, step: int) -> tuple[int, ...]:
    """Return the steps beyond what the run goes on from or saves now, if one of them can be restored. Root only."""
    base = step if run.lineage.step is None else min(step, run.lineage.step)
    newest = newest_restorable(run.directory)
    if newest is None or newest.step <= base:
        return ()
    return tuple(number for number in step_numbers(run.directory) if number > base)


# -- 2 and 3: write ------------------------------------------------------------------------------


def _payloads(tree: StateTree, plan: SavePlan) -> list[Payload]:
    payloads = []
    for item in plan.items:
        width = itemsize(item.spec.dtype)
        data = as_bytes(tree.tensors[item.spec.name].read())
        payloads.append(Payload(item, data[item.start * width : item.stop * width]))
    return payloads


# -- 4 to 7: publish -----------------------------------------------------------------------------


class _Content(NamedTuple):
    """What goes into the manifest beside the plan."""

    request: Request
    reports: list[WriteReport] | None
    tree: StateTree


def read_objects(tree: StateTree) -> dict[str, Any]:
    """Return the state's JSON objects by name. Independent."""
    return {name: leaf.read() for name, leaf in tree.objects.items()}


def _publish(run: Run, staged: commit.Staged, plan: SavePlan, content: _Content, way: commit.Way) -> tuple[Path, int]:
    """Check, describe and publish what was written; return the step's path and number of files. Collective."""

    def publish() -> tuple[Path, int]:
        files = commit.check_coverage(plan, content.reports or [])  # step 4
        manifest = _manifest(run, staged.job, plan, content, files)
        return commit.publish(staged, manifest, run.lock, way), len(files)  # steps 4 to 6

    return run.comm.on_root(f"save step {staged.job.step}: publish", publish)  # step 7


def _manifest(run: Run, job: SaveJob, plan: SavePlan, content: _Content, files: tuple[FileRecord, ...]) -> Manifest:
    return Manifest(
        save_id=job.save_id,
        run_id=run.lineage.run_id or job.save_id,
        parent=run.lineage.save_id,
        step=job.step,
        n_ranks=job.n_ranks,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        backend=run.backend.name,
        block_bytes=job.block_bytes,
        tensors=plan.tensors,
        files=files,
        metrics={name: float(value) for name, value in content.request.metrics.items()},
        objects={"state": read_objects(content.tree), "user": dict(content.request.objects)},
        environment=environment(),
    )


def environment() -> dict[str, Any]:
    """Return the versions that matter, of what the program has loaded. Independent."""
    loaded: dict[str, Any] = {
        name: str(getattr(sys.modules[name], "__version__", "unknown"))
        for name in ("numpy", "tensorflow", "keras", "horovod", "mpi4py", "h5py", "torch")
        if name in sys.modules
    }
    return {"hpcckpt": __version__, "python": platform.python_version(), **loaded}


def _advance(run: Run, job: SaveJob) -> None:
    run.lineage = Lineage(run.lineage.run_id or job.save_id, job.save_id, job.step)
    run.n_saves += 1


# -- 8: retention --------------------------------------------------------------------------------


def _retire(run: Run, staged: commit.Staged) -> tuple[int, tuple[str, ...]]:
    """Apply retention; its failure is a warning, for the step is committed. Collective."""

    def retire_old() -> tuple[int, tuple[str, ...]]:
        kept = 0
        try:
            phases.reached("8-retention", 0)
            open_for_writing(run)  # the lock may have been lost since step 4: then what stands here is not ours
            kept = apply_retention(run.directory, run.options)
            sweep(run.directory)  # the step that was replaced, if any
        except Exception as error:  # noqa: BLE001 - whatever it is, the step is there
            return kept, (f"retention after step {staged.job.step} failed: {as_failure(error).text}",)
        return kept, ()

    return run.comm.on_root("retention", retire_old)
