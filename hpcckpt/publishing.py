"""What root does for a save: open the run directory, look ahead, publish what the ranks wrote, retire, prepare.

The numbers are those of the commit protocol (:mod:`hpcckpt.collective.commit`).  Everything here is root
only and communicates with nobody: in a job it runs on a thread, while all ranks train.
"""

from __future__ import annotations

import contextlib
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from hpcckpt import native, phases
from hpcckpt._version import __version__
from hpcckpt.collective import commit
from hpcckpt.collective.planner import SavePlan, full_plan
from hpcckpt.config import Level
from hpcckpt.discovery import inspect_step, pinned_by_users, step_numbers
from hpcckpt.errors import (
    HpcckptError,
    LockLostError,
    NewerStepError,
    NonFiniteError,
    PinnedStepError,
    ReplicaMismatchError,
    StepExistsError,
    StorageError,
    TreeMismatchError,
    as_failure,
    from_os_error,
)
from hpcckpt.lock import RunLock
from hpcckpt.manifest import Manifest
from hpcckpt.mounts import counts_links, knows_readers
from hpcckpt.plan import Declaration, FileRecord, SaveJob, Ticket, WriteReport
from hpcckpt.run import Run


class Report(NamedTuple):
    """What one rank says of its part of a save.

    Attributes
    ----------
    step : int
        The step it was asked to save.
    written : WriteReport
        What it wrote.
    replicas : list of int or None
        CRC32C of every replicated tensor, when replicas are compared.
    non_finite : tuple of str
        Tensors with NaN or infinite values, when these are guarded against.
    """

    step: int
    written: WriteReport
    replicas: list[int] | None = None
    non_finite: tuple[str, ...] = ()


class Content(NamedTuple):
    """What of a save goes into the manifest beside the plan, as it was when `save` was called."""

    metrics: Mapping[str, float]
    objects: Mapping[str, Any]
    replica_names: Sequence[str] = ()
    level: Level = "state"


class Published(NamedTuple):
    """A committed step: where it is, its files, what retention left, and what went wrong after the commit."""

    path: Path
    n_files: int
    n_kept: int
    warnings: tuple[str, ...]


# -- before the first step -----------------------------------------------------------------------


def open_for_writing(run: Run) -> RunLock:
    """Make the run directory, take its lock, and sweep what killed jobs left; return the lock. Root only.

    Raises
    ------
    LockedError
        If another job holds the lock.
    LockLostError
        If another job took it over from us: nothing in the directory is touched then.
    """
    if run.lock is not None:
        run.lock.check()
        return run.lock
    try:
        make_directory(run.directory)
        run.lock = RunLock.take(run.directory, run.options.lock_expiry_s)
    except OSError as error:
        raise error if isinstance(error, HpcckptError) else from_os_error(error, "open run directory") from error
    run.journal.begin(n_ranks=run.comm.size, backend=run.backend.name)
    run.recycles = _recycles(run)
    with contextlib.suppress(OSError):  # what cannot be removed is tried again, and reported, after the save
        run.workspace.sweep(run.lock)
    return run.lock


def _recycles(run: Run) -> bool:
    """Return True if files of retired steps may be written over."""
    if not run.options.recycle or "recycles" not in run.backend.features or not counts_links(run.directory):
        return False
    return run.options.recycle == "always" or knows_readers(run.directory)


def regain(run: Run) -> None:
    """Take a lock that was lost again, if the other job is gone; what was prepared before counts no more. Root only.

    Raises
    ------
    LockLostError
        If the other job still holds it.
    """
    if run.lock is not None:
        run.workspace.regain(run.lock)


def check_reserved(run: Run, name: str) -> None:
    """Raise unless we have held the lock since a staging directory was prepared. Root only.

    Raises
    ------
    LockLostError
        If another job held it meanwhile: it may have swept the directory.
    """
    if not run.workspace.is_reserved(name):
        raise LockLostError(f"another job held {run.directory} meanwhile; nothing was published, save again")


def make_directory(path: Path) -> None:
    """Make a directory and its parents, durably. Root only."""
    if path.is_dir():
        return
    make_directory(path.parent)
    path.mkdir(exist_ok=True)
    native.fsync_dir(str(path.parent))


def prepare(run: Run, design: Any, reusable: Path | None = None) -> Ticket:
    """Make a staging directory for a save to come, of a retired one if there is one. Root only."""
    ticket = commit.new_ticket()
    path, workspace = run.directory / ticket.name, run.workspace
    with workspace.changing:
        workspace.reserve(ticket.name, run)
        try:
            commit.prepare(run.backend, path, run.comm.size, design, reusable)
            nbytes = sum(512 * f.lstat().st_blocks for f in path.rglob("*")) if reusable else 0
            workspace.reserve(ticket.name, run, nbytes)
        except BaseException:
            workspace.release(ticket.name)
            raise
    return ticket


def design(run: Run, declarations: Sequence[Declaration], gathered: Sequence[Sequence[Declaration]]) -> Any:
    """Let the backend make of a plan what all ranks will have to know. Root only."""
    designs = "designs" in run.backend.features
    return run.backend.design(replace(full_plan(declarations, gathered), directory=run.directory)) if designs else None


def sweep_all(run: Run, lock: RunLock) -> None:
    """Remove all that is temporary, what was prepared for saves to come too. Root only, under the lock."""
    run.workspace.release_all(run)
    run.workspace.sweep(lock)


# -- what stands in the way ----------------------------------------------------------------------


def look_ahead(run: Run, step: int, *, overwrite: bool, is_late: bool = False) -> commit.Way:
    """Find what stands where the step will go, and refuse what may not be moved. Root only.

    Nothing is moved before the new step is whole and durable: a save that fails leaves all as it was.  Beyond one that
    is late, for the run has gone on from it already, everything may stay.
    """
    newer = () if is_late else _newer_steps(run, step)
    if newer and run.options.on_newer == "error":
        raise NewerStepError(
            f"step {step} is older than step {newer[-1]} in {run.directory}, and this run did not resume from step "
            f'{newer[-1]}: restore it first, pass on_newer="aside", or use another directory'
        )
    _check_pins(run, newer)
    if step in newer or step not in step_numbers(run.directory):
        return commit.Way(newer)
    problem = _problem_of(run, step)
    if not problem and not overwrite:
        raise StepExistsError(f"step {step} is in {run.directory} already; pass overwrite=True to replace it")
    if not problem:
        _check_pins(run, [step])
    return commit.Way(newer, "bad" if problem else "good", problem)


def _check_pins(run: Run, steps: Sequence[int]) -> None:
    """Refuse to replace, or move aside, what a user pinned in the run directory. Root only."""
    if not steps or run.tier is not None:  # on scratch steps are pinned until they are drained
        return
    pinned = sorted(pinned_by_users(run.directory) & set(steps))
    if pinned:
        raise PinnedStepError(
            f"step {pinned[-1]} in {run.directory} is pinned, so it is neither replaced nor moved aside: "
            f"hpcckpt unpin {run.directory} {pinned[-1]}, restore it first, or use another directory"
        )


def _newer_steps(run: Run, step: int) -> tuple[int, ...]:
    """Return the steps beyond what the run goes on from or saves now, if one of them can be restored. Root only."""
    base = step if run.lineage.step is None else min(step, run.lineage.step)
    newer = [number for number in step_numbers(run.directory) if number > base]
    return tuple(newer) if any(not _problem_of(run, number) for number in reversed(newer)) else ()


def _problem_of(run: Run, step: int) -> str:
    """Return why a step cannot be restored, or ""; what cannot be read now is neither good nor bad. Root only."""
    info = run.marked(inspect_step(run.directory, step))
    if info.is_unread:
        raise StorageError(info.problem)
    return "" if info.is_restorable else info.problem or "it cannot be restored"


def check_ahead(run: Run, plan: SavePlan, staged: commit.Staged, *, overwrite: bool) -> None:
    """Refuse early what could not be published. Root only."""
    phases.reached("1-begin", 0)
    open_for_writing(run)
    with run.workspace.changing:
        look_ahead(run, staged.job.step, overwrite=overwrite)
    check_space(run, plan, run.workspace.nbytes_of(staged.name))


def check_space(run: Run, plan: SavePlan, staged_bytes: int = 0) -> None:
    """Refuse to begin what cannot be finished in this directory. Root only, or the leader of each place."""
    n_ranks = run.comm.size
    if run.places is not None:
        beside = run.places.beside(run.comm.rank)
        own = (plan.nbytes - sum(plan.shared_nbytes_of)) * len(beside) // n_ranks
        plan = replace(plan, nbytes=own + sum(plan.shared_nbytes_of[rank] for rank in beside))
        n_ranks = len(beside)
    run.workspace.check_space(plan, n_ranks, staged_bytes)


# -- 3 to 6: check, describe, publish ------------------------------------------------------------


def compose(run: Run, staged: commit.Staged, plan: SavePlan, content: Content, reports: Sequence[Report]) -> Manifest:
    """Check what the ranks wrote, let the backend complete it, and say what it is. Root only.

    Raises
    ------
    HpcckptError
        Whatever keeps the step from being published.
    """
    check_reserved(run, staged.name)
    open_for_writing(run)
    check_reports(staged.job, content, reports)
    written = [report.written for report in reports]
    commit.check_coverage(plan, written)  # step 4
    files = run.backend.seal(staged.job, staged.path, written)
    phases.reached("4-sealed", 0)
    return _manifest(run, staged.job, plan, content, files)


def give_name(run: Run, staged: commit.Staged, manifest: Manifest, *, overwrite: bool) -> Published:
    """Publish what was composed, and retire old steps. Root only.

    Raises
    ------
    HpcckptError
        Whatever keeps the step from being published.
    """
    with run.workspace.changing:  # a later save that looks ahead meanwhile must find this step in the lineage
        check_reserved(run, staged.name)
        way = look_ahead(run, staged.job.step, overwrite=overwrite)
        path = commit.publish(staged, manifest, run.lock, way)  # steps 4 to 6
        run.lineage = run.lineage.after(staged.job)
        run.workspace.release(staged.name)  # a step that was replaced has this name now
    return Published(path, len(manifest.files), *_retire(run, staged))


def _manifest(run: Run, job: SaveJob, plan: SavePlan, content: Content, files: tuple[FileRecord, ...]) -> Manifest:
    return Manifest(
        save_id=job.save_id,
        run_id=run.lineage.run_id or job.save_id,
        parent=run.lineage.save_id,
        step=job.step,
        n_ranks=job.n_ranks,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        backend=run.backend.name,
        backend_options=run.backend.options_for_reading(),
        block_bytes=job.block_bytes,
        tensors=plan.tensors,
        files=files,
        metrics=content.metrics,
        objects=content.objects,
        environment=environment(),
        level=content.level,
    )


def environment() -> dict[str, Any]:
    """Return the versions that matter, of what the program has loaded. Independent."""
    loaded: dict[str, Any] = {
        name: str(getattr(sys.modules[name], "__version__", "unknown"))
        for name in ("numpy", "tensorflow", "keras", "horovod", "mpi4py", "h5py", "torch")
        if name in sys.modules
    }
    return {"hpcckpt": __version__, "python": platform.python_version(), **loaded}


def check_reports(job: SaveJob, content: Content, reports: Sequence[Report]) -> None:
    """Refuse what ranks that all wrote do not agree on. Pure.

    Raises
    ------
    TreeMismatchError
        If they were asked to save different steps.
    ReplicaMismatchError
        Naming the first tensors that differ between ranks, and the ranks that differ from rank 0.
    NonFiniteError
        Naming the tensors.
    """
    steps = {rank: report.step for rank, report in enumerate(reports) if report.step != job.step}
    if steps:
        said = ", ".join(f"rank {rank} step {step}" for rank, step in list(steps.items())[:5])
        raise TreeMismatchError(f"ranks save different steps: rank 0 step {job.step}, {said}; make them save the same")
    _check_replicas(content.replica_names, [report.replicas for report in reports if report.replicas is not None])
    bad = sorted({name for report in reports for name in report.non_finite})
    if bad:
        more = f" and {len(bad) - 5} more" if len(bad) > 5 else ""
        raise NonFiniteError(
            f"NaN or infinite values in {', '.join(map(repr, bad[:5]))}{more}; the step was not published: "
            "restore the newest one, or save without nan_guard"
        )


def _check_replicas(names: Sequence[str], every: Sequence[list[int]]) -> None:
    if not every or all(theirs == every[0] for theirs in every):
        return
    shown = []
    for number, name in enumerate(names):
        ranks = [rank for rank, theirs in enumerate(every) if theirs[number] != every[0][number]]
        if ranks:
            shown.append(f"{name!r} on rank {', '.join(map(str, ranks))}")
    more = f" and {len(shown) - 5} more" if len(shown) > 5 else ""
    raise ReplicaMismatchError(
        f"tensors that should be equal on all ranks differ from rank 0's: {'; '.join(shown[:5])}{more}; "
        "if each rank holds a part of an array, pass hpcckpt.Sharded(part, global_shape, offset); if each rank has its "
        "own value, hpcckpt.PerRank(value); if rank 0's counts, hpcckpt.RootOnly(value); else broadcast before the save"
    )


# -- 8: retention, and what the next save will need ----------------------------------------------


def _retire(run: Run, staged: commit.Staged) -> tuple[int, tuple[str, ...]]:
    """Apply retention; its failure is a warning, for the step is committed. Root only."""
    run.reusable, n_kept, problem = None, 0, ""
    try:
        phases.reached("8-retention", 0)
        lock = open_for_writing(run)  # it may have been lost since step 4: then another job has written here
        n_kept, problem = _keep_some(run, lock)
        run.workspace.sweep(lock)  # the step that was replaced, if any
    except Exception as error:  # noqa: BLE001 - whatever it is, the step is there
        problem = as_failure(error).text
    return n_kept, (f"retention after step {staged.job.step} failed: {problem}",) if problem else ()


def _keep_some(run: Run, lock: RunLock) -> tuple[int, str]:
    """Retire what need not stay; return how many steps are left, and what could not be removed. Root only."""
    recycler = run if run.recycles else None
    kept = run.workspace.retain(lock, run.options, run.marked, run.manifests, recycler=recycler)
    run.reusable = kept.reusable
    if run.tier is None:  # else they are in the run directory still
        run.journal.removed(kept.removed)
    return kept.n_steps, kept.problem


def next_ticket(run: Run, design: Any) -> Ticket | None:
    """Prepare the staging directory of a save to come; ``None`` if that fails: then that save tries. Root only."""
    reusable, run.reusable = run.reusable, None
    try:
        with contextlib.suppress(Exception):  # the step before is committed: the next save plans again
            open_for_writing(run)
            with run.workspace.changing:
                is_ours = reusable is not None and run.workspace.is_reserved(reusable.name)
                return prepare(run, design, reusable if is_ours else None)
    finally:
        if reusable is not None:
            run.workspace.release(reusable.name)
    return None


def abandon(run: Run, staged: commit.Staged) -> None:
    """Remove what a failed save left. Root only."""
    run.workspace.abandon(staged)
