"""What this process uses in a run directory, and one change of the directory at a time.

The lock file (:mod:`hpcckpt.rundir.lock`) keeps other jobs away.  All checkpointers of a process share it, so it does
not keep them apart.  There is one `Workspace` for each process and directory, and every preparation, commit,
retirement and sweep there takes these steps:

1. enter `Workspace.commit_mutex`; but for a preparation, give back the names that a failed commit still holds
2. list the directory, and decide what to change
3. check the lock: what a job makes that takes the lock over is then not in the list
4. rename what is to be removed to a new name; this fails if it was committed or removed meanwhile
5. remove it; no other process uses that name

Names in use are reserved, so that no sweep removes them.  The files of a retired step are removed on a thread, which
ends before the next retirement and before the lock is released; a job that is killed before that leaves them to the
next sweep.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from hpcckpt.collective.planner import SavePlan
from hpcckpt.collective.thread_tasks import Task
from hpcckpt.core.options import Options
from hpcckpt.core.system import FileSystem, OperatingSystem, PathLike
from hpcckpt.errors import HpcckptError, NoSpaceError, as_failure
from hpcckpt.format import layout
from hpcckpt.native.posix_files import REAL
from hpcckpt.rundir import commit, damage_records, retention
from hpcckpt.rundir.discovery import read_manifest
from hpcckpt.rundir.lock import RunLock
from hpcckpt.rundir.pins import drop_stale_pins, is_pinned
from hpcckpt.rundir.renames import Renames
from hpcckpt.rundir.step_list import StepList

_log = logging.getLogger("hpcckpt")


class Retained(NamedTuple):
    """What retention left.

    Attributes
    ----------
    n_steps : int
        Restorable steps that are left.
    removed : tuple of int
        Steps that were retired.
    reusable : pathlib.Path or None
        A retired step whose files the next save may write over.
    problem : str
        Why the files of an earlier step could not be removed; "" if they could.
    """

    n_steps: int
    removed: tuple[int, ...] = ()
    reusable: Path | None = None
    problem: str = ""


class _Reservation(NamedTuple):
    """The owner of a name, and how many bytes the files below it have already."""

    owner: object
    nbytes: int


class Workspace:
    """What this process uses in a run directory; `at` returns the one that all checkpointers share.

    Attributes
    ----------
    directory : pathlib.Path
        The run directory, without symbolic links.
    system : OperatingSystem
        Where the directory is, and this process.
    commit_mutex : context manager
        A lock that is held while names in the directory change.
    journal_mutex : context manager
        A lock that is held while lines are written to the journal.
    last_commit : (str, int)
        Who of this process committed a step last, and how many were committed; read and set under `commit_mutex`.
    """

    def __init__(self, directory: Path, system: OperatingSystem = REAL) -> None:
        self.directory = directory
        self.system = system
        self.commit_mutex = system.executor.lock()
        self.journal_mutex = system.executor.lock()
        self.last_commit: tuple[str, int] = "", 0
        self._reserved: dict[str, _Reservation] = {}
        self._failed: list[Renames] = []  # of commits that failed, and not undone yet
        self._kept: set[str] = set()
        self._removal: Task | None = None
        self._problem = ""  # that was logged last

    @classmethod
    def at(cls, directory: PathLike, system: OperatingSystem = REAL) -> Workspace:
        """Return the workspace of a directory, which need not exist. Independent."""
        path = system.files.real_path(directory)
        return system.shared((cls, path), lambda: cls(Path(path), system))

    @property
    def _files(self) -> FileSystem:
        return self.system.files

    # -- names ---------------------------------------------------------------------------------------

    def reserve(self, name: str, owner: object, nbytes: int = 0) -> None:
        """Keep sweeps away from a name, before it exists. Independent."""
        self._reserved[name] = _Reservation(owner, nbytes)

    def release(self, name: str) -> None:
        """Leave a name to the next sweep. Independent."""
        self._reserved.pop(name, None)

    def release_all(self, owner: object) -> None:
        """Leave all names of one owner to the next sweep. Independent."""
        with self.commit_mutex:
            for name, reservation in list(self._reserved.items()):
                if reservation.owner is owner:
                    self.release(name)

    def is_reserved(self, name: str) -> bool:
        """Return True if a name is in use. Independent."""
        return name in self._reserved

    def nbytes_of(self, name: str) -> int:
        """Return how many bytes the files below a reserved name have already. Independent."""
        found = self._reserved.get(name)
        return found.nbytes if found else 0

    def reserved(self, owner: object) -> list[str]:
        """Return the names of one owner. Independent."""
        return [name for name, reservation in list(self._reserved.items()) if reservation.owner is owner]

    def leftovers(self) -> list[str]:
        """Return the names of temporary and retired directories that this process does not use. Independent."""
        return [name for name in retention.leftovers(self.directory, self._files) if not self.is_reserved(name)]

    # -- changes -------------------------------------------------------------------------------------

    def reacquire(self, lock: RunLock) -> None:
        """Take a lock again that was lost, if the other job has ended; nothing stays reserved then. Root only.

        Raises
        ------
        LockLostError
            If the other job still holds it.
        """
        with self.commit_mutex:
            if lock.reclaim():
                self._reserved.clear()  # the other job may have swept it
                self._failed.clear()  # and may have resumed from what it found

    @contextlib.contextmanager
    def renaming(self, lock: RunLock) -> Iterator[Renames]:
        """Give all names back if the block fails: at once, or else before the next change. Root only."""
        with self.commit_mutex:
            self.restore_names()
            renames = Renames(self.directory, lock)
            try:
                yield renames
            except BaseException:
                self.undo(renames)
                raise

    def undo(self, renames: Renames) -> None:
        """Give back the names that a failed commit changed: at once, or else before the next change. Root only."""
        with self.commit_mutex:
            self._failed.append(renames)
            try:
                self.restore_names()
            except OSError as error:
                _log.warning(
                    "hpcckpt: %s: not every name that a failed save changed could be given back: %s; "
                    "this is repeated before the next save, restore or close",
                    self.directory, as_failure(error).text,
                )  # fmt: skip

    def restore_names(self) -> None:
        """Give back the names that could not be given back when their commit failed. Root only.

        Raises
        ------
        OSError
            If the storage still refuses it: the steps that are listed are not those that were committed.
        """
        with self.commit_mutex:
            while self._failed:
                renames = self._failed[-1]
                renames.undo()
                self._failed.pop()
                if renames.is_kept:
                    self._kept.add(renames.save_id)
                    _log.warning(
                        "hpcckpt: %s: the save failed, but its step keeps its name: it was pinned meanwhile",
                        renames.final,
                    )

    def try_restore_names(self) -> None:
        """Do the same before steps are listed or read, which needs no storage that can be written. Root only."""
        with contextlib.suppress(OSError):
            self.restore_names()

    def keep(self, save_id: str) -> None:
        """Leave the step of a failed save its name, if it still has it: the run resumes from it. Root only."""
        with self.commit_mutex:
            self._failed = [renames for renames in self._failed if renames.save_id != save_id]

    def is_kept(self, save_id: str) -> bool:
        """Return True if a save failed, and its step was pinned before its name was given back. Independent."""
        return save_id in self._kept

    def retain(
        self,
        lock: RunLock,
        options: Options,
        steps: StepList | None = None,
        *,
        recycler: object = None,
    ) -> Retained:
        """Retire the steps that need not stay. Root only.

        Parameters
        ----------
        lock : RunLock
            Of this process; checked again.
        options : Options
            What is to be kept.
        steps : StepList, optional
            What this job knows of the steps.
        recycler : object, optional
            The owner for which the name of the last retired step is reserved: it writes over its files.
        """
        problem = self.finish_removal()  # not under the mutex: it may last
        with self.commit_mutex:
            self.restore_names()
            problem = problem or self.finish_removal()  # if another checkpointer has begun one meanwhile
            plan = retention.plan_retention(self.directory, options, steps, self.system)
            if plan.going:
                lock.check()
            if plan.problem not in {"", self._problem}:
                self._problem = plan.problem
                _log.warning("hpcckpt: keep_best keeps nothing in %s: %s", self.directory, plan.problem)
            reusable: Path | None = None
            hidden: list[Path] = []
            removed: list[int] = []
            try:
                for info in plan.going:
                    path = self._hide(info.path.name, recycler or self, info.step)
                    if path is not None:
                        hidden.append(path)
                        removed.append(info.step)
                if recycler is not None and hidden:
                    reusable = hidden.pop()
            finally:
                self._remove_later(hidden)
            return Retained(plan.n_kept + len(plan.going) - len(removed), tuple(removed), reusable, problem)

    def sweep(self, lock: RunLock, is_swept: Callable[[str], bool] = lambda _name: True) -> list[str]:
        """Undo and remove what killed jobs left; return the names. Root only.

        Parameters
        ----------
        lock : RunLock
            Of this process; checked again.
        is_swept : callable
            Chooses among the names of temporary and retired directories.

        Raises
        ------
        OSError
            The first one; all that can be removed is removed all the same.
        """
        hidden: list[Path] = []
        errors: list[OSError] = []
        with self.commit_mutex:
            self.restore_names()
            drop_stale_pins(self.directory, self.system)
            damage_records.drop_stale(self.directory, self._files)
            names = [name for name in self.leftovers() if is_swept(name)]
            replaced = [name for name in sorted(self._files.names(self.directory)) if layout.replaced_original(name)]
            if names or replaced:
                lock.check()
            for act, each in ((self._restore_name, replaced), (self._hidden, names)):
                for name in each:
                    try:
                        hidden += act(name)
                    except OSError as error:
                        errors.append(error)
        try:
            self._remove_all(hidden)
        except OSError as error:
            errors.append(error)
        if errors:
            raise errors[0]
        return names

    def retire(self, name: str, step: int | None = None) -> bool:
        """Take a directory out of sight, then remove it; of a symbolic link no more. Root only, under the lock.

        Return False if it is a `step` that is pinned, which stays.
        """
        with self.commit_mutex:
            self.restore_names()
            path = self._hide(name, self, step)
        if path is not None:
            self._remove(path)
        return not self._files.exists(self.directory / name)

    def abort(self, staged: commit.Staged) -> None:
        """Remove what a failed save left; what cannot be removed is swept later. Root only."""
        try:
            with self.commit_mutex:
                self.release(staged.name)
                self.restore_names()
                if self._is_other_save(staged):
                    return  # the step that was to be replaced: the lock was lost before its name was given back
                hidden = self._hidden(staged.name)
            for path in hidden:
                self._remove(path)
        except OSError:
            return

    def check_space(self, plan: SavePlan, n_ranks: int, staged_bytes: int = 0) -> None:
        """Raise if a save cannot be finished, after files that are being removed are gone. Root only.

        Raises
        ------
        NoSpaceError
            With how much is needed and how much is free.
        """
        try:
            commit.check_space(self.directory, plan, n_ranks, staged_bytes, self._files)
        except NoSpaceError:
            removal = self._removal
            if removal is None:
                raise
            removal.join("files of retired steps are removed, because there is too little free space")
            commit.check_space(self.directory, plan, n_ranks, staged_bytes, self._files)

    def finish_removal(self) -> str:
        """Wait until the files of retired steps are removed; return why they could not be, or "". Root only."""
        removal = self._removal
        if removal is None:
            return ""
        removal.join("files of retired steps are removed")
        with self.commit_mutex:
            if self._removal is removal:  # last: an interrupted wait is repeated
                self._removal = None
        outcome = removal.outcome
        return outcome.failure.text if outcome is not None and outcome.failure is not None else ""

    # -- the steps of a removal ----------------------------------------------------------------------

    def _hide(self, name: str, owner: object, step: int | None = None) -> Path | None:
        """Rename a directory to a new name; of anything else remove the name (steps a and b).

        A `step` that is pinned keeps its name.
        """
        path = self.directory / name
        if self._files.is_link(path) or not self._files.is_dir(path):  # a link is never followed
            if self._files.unlink(path):
                self._files.fsync_dir(self.directory)
            return None
        hidden = self.directory / layout.retired_dirname(layout.new_nonce())

        def is_kept() -> bool:
            return step is not None and is_pinned(self.directory, step, hidden, self.system)

        self.reserve(hidden.name, owner)
        is_hidden = False
        try:
            is_hidden = retention.take_out_of_sight(path, hidden, self._files, is_kept)
        finally:
            if not is_hidden:
                self.release(hidden.name)
        return hidden if is_hidden else None

    def _hidden(self, name: str) -> list[Path]:
        """Do the same with what may be gone already: another job removed it, or it was committed."""
        try:
            path = self._hide(name, self)
        except FileNotFoundError:
            return []
        return [path] if path is not None else []

    def _restore_name(self, name: str) -> list[Path]:
        """Rename a directory that waited for an exchange of names back, or hide it if its name is taken."""
        original = layout.replaced_original(name)
        assert original is not None
        if not self._files.is_dir(self.directory / name):
            return []
        if self._files.exists(self.directory / original):
            return self._hidden(name)
        self._files.rename(self.directory / name, self.directory / original)
        self._files.fsync_dir(self.directory)
        return []

    def _remove(self, path: Path) -> None:
        try:
            self._files.remove_tree(path)  # step c
        finally:
            self.release(path.name)

    def _remove_later(self, paths: Sequence[Path]) -> None:
        """Remove directories on a thread."""
        if paths:
            clock, executor = self.system.clock, self.system.executor
            self._removal = Task(
                lambda: self._remove_all(paths), executor.flag(), clock=clock, executor=executor
            ).start()

    def _remove_all(self, paths: Sequence[Path]) -> None:
        errors: list[OSError] = []
        for path in paths:
            try:
                self._remove(path)
            except OSError as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def _is_other_save(self, staged: commit.Staged) -> bool:
        try:
            return read_manifest(staged.path, self._files).save_id != staged.job.save_id
        except HpcckptError:
            return False
