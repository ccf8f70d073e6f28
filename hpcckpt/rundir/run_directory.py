"""One run directory as a process of this job uses it: lock, staging slots, steps, retention, journal.

Every rank has one.  Root calls its methods, or the leader of each node where the directory is on the node's own disk.
They do not communicate: in a job they run on a thread, while all ranks train.  The numbers are those of the
commit protocol (:mod:`hpcckpt.rundir.commit`).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from hpcckpt.backends.base import Backend, is_built_in
from hpcckpt.collective.planner import SavePlan, full_plan
from hpcckpt.core import failpoints
from hpcckpt.core.mounts import counts_links, knows_readers
from hpcckpt.core.options import Options
from hpcckpt.core.plan import Declaration, FileRecord, SaveJob, StagingSlot
from hpcckpt.core.system import FileSystem, OperatingSystem
from hpcckpt.errors import (
    BackendError,
    HpcckptError,
    LockLostError,
    NewerStepError,
    NoSpaceError,
    StepExistsError,
    StorageError,
    as_failure,
    from_os_error,
    list_problems,
)
from hpcckpt.format import layout
from hpcckpt.format.manifest import Manifest, problems_of_files
from hpcckpt.native.posix_files import POSIX, REAL
from hpcckpt.rundir import commit
from hpcckpt.rundir.commit import Conflicts, Staged
from hpcckpt.rundir.journal import Journal
from hpcckpt.rundir.lock import RunLock
from hpcckpt.rundir.pins import refuse_pinned
from hpcckpt.rundir.renames import Renames
from hpcckpt.rundir.reports import Content, RankReport, check_reports, environment
from hpcckpt.rundir.step_list import StepList
from hpcckpt.rundir.workspace import Workspace

_log = logging.getLogger("hpcckpt")


@dataclass(frozen=True, slots=True)
class Lineage:
    """The checkpoint that the run saved or restored last. The same on all ranks."""

    run_id: str | None = None
    save_id: str | None = None
    step: int | None = None

    def after(self, job: SaveJob) -> Lineage:
        """Return the lineage of a run that has saved this. Pure."""
        return Lineage(self.run_id or job.save_id, job.save_id, job.step)


class NodeMap(NamedTuple):
    """Which ranks see the same directory: all, or, if it is on the disks of several nodes, those of each node.

    Attributes
    ----------
    n_ranks : int
        The number of ranks.
    leaders : tuple of int
        For each rank the lowest rank of its node, its leader; empty if all ranks see one directory.
    """

    n_ranks: int
    leaders: tuple[int, ...] = ()

    @property
    def is_shared(self) -> bool:
        """Whether all ranks see one directory; root is the leader of all then."""
        return not self.leaders

    def leader_of(self, rank: int) -> int:
        """Return the leader of the node of a rank. Pure."""
        return self.leaders[rank] if self.leaders else 0

    def ranks_with(self, rank: int) -> Sequence[int]:
        """Return the ranks on the node of a rank, in rising order. Pure."""
        if self.is_shared:
            return range(self.n_ranks)
        return [other for other, leader in enumerate(self.leaders) if leader == self.leaders[rank]]


class Candidate(NamedTuple):
    """A step that may be restored, and the directory that it is in: the run directory, or scratch."""

    step: int
    directory: Path


class Committed(NamedTuple):
    """A committed step: where it is, its files, what retention left, and what failed after the commit."""

    path: Path
    n_files: int
    n_kept: int
    warnings: tuple[str, ...]


def make_directory(path: Path, files: FileSystem = POSIX) -> None:
    """Make a directory and its parents, durably. Root only."""
    if files.is_dir(path):
        return
    make_directory(path.parent, files)
    files.mkdir(path)
    files.fsync_dir(path.parent)


@dataclass(slots=True)
class Recycling:
    """Whether the next save may write over files of a retired step, and the directory of such a step."""

    is_allowed: bool = False
    reusable: Path | None = None


class RunDirectory:
    """A run directory, or the run's directory on scratch.

    Parameters
    ----------
    path : pathlib.Path
        Where it is.
    rank : int
        This process' rank in the job.
    nodes : NodeMap
        Which ranks see the same directory; all, unless it is scratch on the disks of several nodes.
    backend : Backend
        Writes and reads the data files.
    options : Options
        Of the checkpointer.
    system : OperatingSystem
        Where the directory is, and this process.

    Attributes
    ----------
    lineage : Lineage
        The checkpoint that the run continues from.
    lock : RunLock or None
        While this process writes here.
    workspace : Workspace
        Names that this process uses here; all checkpointers of the process share it.
    steps : StepList
        The steps, and what restores found out about them.
    journal : Journal
        The run's journal; only root writes it.
    is_scratch : bool
        True if steps are drained from here to another run directory.
    recycling : Recycling
        Whether files of retired steps are written over, and the retired directory for the next save.
    undo_part : dict of str to (Renames, bool)
        Leaders of nodes only: the renames of a part that was committed, by its staging directory; and whether the step
        was pinned before.
    """

    def __init__(
        self, path: Path, rank: int, nodes: NodeMap, backend: Backend, options: Options, system: OperatingSystem = REAL
    ) -> None:
        self.path, self.rank, self.nodes = path, rank, nodes
        self.backend, self.options, self.system = backend, options, system
        self.lineage = Lineage()
        self.lock: RunLock | None = None
        self.workspace = Workspace.at(path, system)
        self.steps = StepList(path, system.files, has_parts=not nodes.is_shared)
        self.journal = Journal(path, is_writing=rank == 0, system=system)
        self.is_scratch = False
        self.recycling = Recycling()
        self.undo_part: dict[str, tuple[Renames, bool]] = {}
        self._name = layout.new_nonce()
        self._left_at: tuple[str, int] | None = None

    @property
    def n_ranks(self) -> int:
        """The number of ranks of the job."""
        return self.nodes.n_ranks

    @property
    def is_root(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0

    @property
    def is_leading(self) -> bool:
        """Whether this rank acts for its node, or, where all ranks see one directory, for all."""
        return self.nodes.leader_of(self.rank) == self.rank

    @property
    def is_leading_other_node(self) -> bool:
        """Whether this rank acts for a node that root is not on."""
        return self.is_leading and not self.is_root

    # -- open and close: lock, staging slots ------

    def open(self) -> RunLock:
        """Make the run directory, take its lock, and remove what killed jobs left; return the lock. Root only.

        Raises
        ------
        LockedError
            If another job holds the lock.
        LockLostError
            If another job has taken it over: nothing in the directory is changed then.
        """
        if self.lock is not None:
            return self.held_lock()
        try:
            make_directory(self.path, self.system.files)
            self.lock = RunLock.take(self.path, self.options.lock_expiry_s, system=self.system)
        except OSError as error:
            raise error if isinstance(error, HpcckptError) else from_os_error(error, "open run directory") from error
        self.journal.begin(n_ranks=self.n_ranks, backend=self.backend.name)
        self.recycling.is_allowed = self._may_recycle()
        with contextlib.suppress(OSError):  # what cannot be removed is tried again, and reported, after the save
            self.workspace.sweep(self.lock)
        return self.lock

    def held_lock(self) -> RunLock:
        """Return the lock that was taken when the save began. Root only, or the leader of each node.

        Raises
        ------
        LockLostError
            If another job has taken it over, or the run was closed meanwhile: it is not taken again then.
        """
        if self.lock is None:
            raise LockLostError(f"{self.path} was closed meanwhile; nothing was committed, save again")
        self.lock.check()
        return self.lock

    def _may_recycle(self) -> bool:
        """Return True if files of retired steps may be written over."""
        if not self.options.recycle or "recycles" not in self.backend.features or not counts_links(self.path):
            return False
        return self.options.recycle == "always" or knows_readers(self.path)

    def reacquire(self) -> None:
        """Take a lock that was lost again if the other job has ended; earlier slots are void then. Root only.

        Raises
        ------
        LockLostError
            If the other job still holds it.
        """
        if self.lock is not None:
            self.workspace.reacquire(self.lock)

    def check_reserved(self, name: str) -> None:
        """Raise unless this process has held the lock since a staging directory was prepared. Root only.

        Raises
        ------
        LockLostError
            If another job held it meanwhile: it may have swept the directory.
        """
        if not self.workspace.is_reserved(name):
            raise LockLostError(f"another job held {self.path} meanwhile; nothing was committed, save again")

    def prepare_slot(self, file_layout: Any, reusable: Path | None = None) -> StagingSlot:
        """Make the staging directory of a later save, from a retired one if there is one. Root only."""
        slot, files = commit.new_slot(), self.system.files
        path, workspace = self.path / slot.name, self.workspace
        with workspace.commit_mutex:
            workspace.reserve(slot.name, self)
            try:
                commit.prepare(self.backend, path, self.n_ranks, file_layout, reusable, files)
                nbytes = sum(512 * found.st_blocks for found in files.tree(path)) if reusable else 0
                workspace.reserve(slot.name, self, nbytes)
            except BaseException:
                workspace.release(slot.name)
                raise
        return slot

    def file_layout(self, declarations: Sequence[Declaration], gathered: Sequence[Sequence[Declaration]]) -> Any:
        """Return where a shared file's bytes go, which all ranks have to know, if the backend needs that. Root only."""
        if "designs" not in self.backend.features:
            return None
        return self.backend.file_layout(replace(full_plan(declarations, gathered), directory=self.path))

    def close(self) -> None:
        """Remove the staging directories that were prepared, and release the lock; may be repeated. Root only."""
        lock = self.lock
        if lock is None:
            return
        failure: Exception | None = None
        try:
            with contextlib.suppress(OSError, LockLostError):
                if lock.is_mine():
                    self.workspace.release_all(self)
                    self.workspace.sweep(lock)
            problem = self.workspace.finish_removal()
            if problem:
                _log.warning("hpcckpt: %s: a retired step could not be removed: %s", self.path, problem)
        except Exception as error:  # noqa: BLE001 - whatever it is; after an interrupt this is repeated, under the lock
            failure = error
        with self.workspace.commit_mutex:
            if self.lock is lock:  # of two threads that do so at the same time one releases it
                lock.release()
                self.lock = None  # last: an interrupted release is repeated
        if failure is not None:
            raise failure

    # -- conflicts ------

    def check_conflicts(self, step: int, *, overwrite: bool, is_late: bool = False) -> Conflicts:
        """Return which steps a commit of this step replaces or moves aside; raise if it may not. Root only.

        Nothing is moved before the new step is whole and durable: a save that fails changes nothing.  If the step
        `is_late`, the run has continued from it already, and later steps stay.
        """
        self.workspace.restore_names()
        newer = () if is_late else self._newer_steps(step)
        if newer and self.options.on_newer == "error":
            where, base = f"step {step} is older than step {newer[-1]} in {self.path}", self.lineage.step
            if base is not None and base >= newer[-1]:
                raise NewerStepError(
                    f"{where}, from which this run continues, and only the newest step can be replaced: to go back, "
                    'restore an older step, with on_newer="aside"'
                )
            raise NewerStepError(
                f"{where}, and this run did not resume from step {newer[-1]}: restore it first, pass "
                'on_newer="aside", or use another directory'
            )
        self._check_pins(newer)
        if step in newer or step not in self.steps.numbers():
            return Conflicts(newer, is_scratch=self.is_scratch)
        problem = self._problem_of(step)
        if not problem and not overwrite:
            raise StepExistsError(f"step {step} is in {self.path} already; pass overwrite=True to replace it")
        if not problem:
            self._check_pins([step])
        return Conflicts(newer, "bad" if problem else "good", problem, self.is_scratch)

    def _check_pins(self, steps: Sequence[int]) -> None:
        """Raise if a user pinned one of these steps in the run directory. Root only."""
        if not self.is_scratch:  # there steps are pinned until they are drained
            refuse_pinned(self.path, steps, system=self.system)

    def _newer_steps(self, step: int) -> tuple[int, ...]:
        """Return the steps after those that the run continues from or saves, if one is restorable. Root only."""
        base = step if self.lineage.step is None else min(step, self.lineage.step)
        newer = [number for number in self.steps.numbers() if number > base and not self._is_kept(number)]
        return tuple(newer) if any(not self._problem_of(number) for number in reversed(newer)) else ()

    def _is_kept(self, step: int) -> bool:
        """Return True if a step is of a save of this job that failed, and keeps its name all the same. Root only."""
        found = self.steps.inspect(step).manifest
        return found is not None and self.workspace.is_kept(found.save_id)

    def _problem_of(self, step: int) -> str:
        """Return why a step cannot be restored, or ""; raise if that cannot be read now. Root only."""
        info = self.steps.mark(self.steps.inspect(step))
        if info.is_unread:
            raise StorageError(info.problem)
        return "" if info.is_restorable else info.problem or "it cannot be restored"

    def check_before_writing(self, plan: SavePlan, staged: Staged, *, overwrite: bool, may_link: bool) -> None:
        """Raise before the first byte is written if the step could not be committed. Root only."""
        failpoints.reached("1-begin", 0)
        self.held_lock()
        with self.workspace.commit_mutex:
            self.check_conflicts(staged.job.step, overwrite=overwrite)
        self.check_space(plan, self.workspace.nbytes_of(staged.name), may_link=may_link)

    def check_space(self, plan: SavePlan, staged_bytes: int = 0, *, may_link: bool = False) -> None:
        """Raise if there is too little space for a save in this directory. Root only, or the leader of each node.

        How much a save that may link values of the step before will write is known to no rank alone: such a save
        waits for space, and fails when a rank allocates its files.
        """
        neighbours = self.nodes.ranks_with(self.rank)
        own = (plan.nbytes - sum(plan.shared_nbytes_of)) * len(neighbours) // self.n_ranks
        plan = replace(plan, nbytes=own + sum(plan.shared_nbytes_of[rank] for rank in neighbours))
        with contextlib.suppress(NoSpaceError) if may_link else contextlib.nullcontext():
            self.workspace.check_space(plan, len(neighbours), staged_bytes)

    # -- 3 to 6: check, describe, commit ------

    def compose(self, staged: Staged, plan: SavePlan, content: Content, reports: Sequence[RankReport]) -> Manifest:
        """Check what the ranks wrote, let the backend complete it, and return its manifest. Root only.

        Raises
        ------
        HpcckptError
            Whatever prevents the commit.
        """
        self.check_reserved(staged.name)
        self.held_lock()
        check_reports(staged.job, content, reports)
        written = [report.written for report in reports]
        commit.check_coverage(plan, written)  # step 4
        files = self.backend.seal(staged.job, staged.path, written)
        failpoints.reached("4-sealed", 0)
        problems = () if is_built_in(self.backend) else problems_of_files(files, self.backend.options_for_reading())
        if problems:
            raise BackendError(f"backend {self.backend.name!r}: {list_problems(problems)}; nothing was committed")
        return self._manifest(staged.job, plan, content, files)

    def commit(self, staged: Staged, manifest: Manifest, *, overwrite: bool) -> Committed:
        """Commit what was composed, and retire old steps. Root only.

        Raises
        ------
        HpcckptError
            Whatever prevents the commit.
        """
        assert self.lock is not None, "a step is committed only under the lock"
        with (
            self.workspace.commit_mutex
        ):  # a later save that checks conflicts meanwhile must find this step in the lineage
            self.check_reserved(staged.name)
            self.check_current(staged.job.step)
            conflicts = self.check_conflicts(staged.job.step, overwrite=overwrite)
            with self.workspace.renaming(self.lock) as renames:
                path = commit.commit_step(staged, manifest, renames, conflicts)  # steps 4 to 6
            self.note_commit()
            self.lineage = self.lineage.after(staged.job)
            self.workspace.release(staged.name)  # a step that was replaced has this name now
        return Committed(path, len(manifest.files), *self._apply_retention(staged))

    def check_current(self, step: int) -> None:
        """Raise if an exception ended this run, and another one of this process has committed here since. Root only.

        Under `commit_mutex`.
        """
        last = self.workspace.last_commit
        if self._left_at not in {None, last} and last[0] != self._name:
            raise NewerStepError(
                f"step {step} in {self.path} is of a run that an exception ended; the run was opened again meanwhile, "
                "and went on without this step"
            )

    def note_end(self) -> None:
        """Note that an exception ended the run: what another one commits here from now on is not undone. Independent.

        See `check_current`.
        """
        self._left_at = self._left_at or self.workspace.last_commit

    def note_commit(self) -> None:
        """Note that this run has committed a step here. Root only, under `commit_mutex`."""
        self.workspace.last_commit = self._name, self.workspace.last_commit[1] + 1

    def _manifest(self, job: SaveJob, plan: SavePlan, content: Content, files: tuple[FileRecord, ...]) -> Manifest:
        return Manifest(
            save_id=job.save_id,
            run_id=self.lineage.run_id or job.save_id,
            parent=self.lineage.save_id,
            step=job.step,
            n_ranks=job.n_ranks,
            created=datetime.fromtimestamp(self.system.clock.time(), UTC).isoformat(timespec="seconds"),
            backend=self.backend.name,
            backend_options=self.backend.options_for_reading(),
            block_bytes=job.block_bytes,
            tensors=plan.tensors,
            files=files,
            metrics=content.metrics,
            objects=content.objects,
            environment=environment(),
            level=content.level,
        )

    # -- 8: retention, and what the next save will need ------

    def _apply_retention(self, staged: Staged) -> tuple[int, tuple[str, ...]]:
        """Retire old steps; a failure is a warning, because the step is committed. Root only."""
        self.recycling.reusable, n_kept, problem = None, 0, ""
        try:
            failpoints.reached("8-retention", 0)
            lock = self.held_lock()  # lost since step 4, another job has written here
            n_kept, problem = self._retain(lock)
            self.workspace.sweep(lock)  # the step that was replaced, if any
        except Exception as error:  # noqa: BLE001 - whatever it is, the step exists
            problem = as_failure(error).text
        return n_kept, (f"retention after step {staged.job.step} failed: {problem}",) if problem else ()

    def _retain(self, lock: RunLock) -> tuple[int, str]:
        """Retire steps; return how many are left, and what could not be removed. Root only."""
        recycler = self if self.recycling.is_allowed else None
        kept = self.workspace.retain(lock, self.options, self.steps, recycler=recycler)
        self.recycling.reusable = kept.reusable
        if not self.is_scratch:  # else they are still in the run directory
            self.journal.removed(kept.removed)
        return kept.n_steps, kept.problem

    def next_slot(self, file_layout: Any) -> StagingSlot | None:
        """Prepare the staging directory of a later save; ``None`` if that fails: then that save does it. Root only."""
        reusable, self.recycling.reusable = self.recycling.reusable, None
        try:
            with contextlib.suppress(Exception):  # the step before is committed: the next save plans again
                self.held_lock()
                with self.workspace.commit_mutex:
                    is_ours = reusable is not None and self.workspace.is_reserved(reusable.name)
                    return self.prepare_slot(file_layout, reusable if is_ours else None)
        finally:
            if reusable is not None:
                self.workspace.release(reusable.name)
        return None

    def abort(self, staged: Staged) -> None:
        """Remove the files of a failed save. Root only."""
        self.workspace.abort(staged)
