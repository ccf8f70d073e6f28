"""What this process uses in a run directory, and one change of the directory at a time.

The lock file (:mod:`hpcckpt.lock`) keeps other jobs away.  All checkpointers of a process share it, so it does not keep
them apart.  There is one `Workspace` for each process and directory, and whatever prepares, commits, retires or sweeps
there does it in these steps:

1. enter `Workspace.changing`
2. list the directory, and decide what to change
3. check the lock: what a job makes that takes the lock over is then not in the list
4. rename what is to be removed to a new name; this fails if it was published or removed meanwhile
5. remove it; no other process uses that name

Names in use are reserved, so that no sweep removes them.  The files of a retired step are removed on a thread, which
ends before the next retirement and before the lock is released; a job that is killed before that leaves them to the
next sweep.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar, NamedTuple

from hpcckpt import damage, files, layout, native, retention
from hpcckpt.collective import commit
from hpcckpt.collective.planner import SavePlan
from hpcckpt.config import Options
from hpcckpt.discovery import Manifests, StepInfo, drop_stale_pins, read_manifest
from hpcckpt.draining import Flag, Task
from hpcckpt.errors import HpcckptError, NoSpaceError
from hpcckpt.lock import RunLock


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
    """Whose a name is, and how many bytes the files below it have already."""

    owner: object
    nbytes: int


class Workspace:
    """What this process uses in a run directory; `at` returns the one that all checkpointers share.

    Attributes
    ----------
    directory : pathlib.Path
        The run directory, without symbolic links.
    changing : threading.RLock
        Held while names in the directory change.
    noting : threading.RLock
        Held while lines are written to the journal.
    """

    _all: ClassVar[dict[tuple[int, str], Workspace]] = {}
    """By process too: a forked child shares nothing with its parent. Never locked, for a fork would copy the lock."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.changing = threading.RLock()
        self.noting = threading.RLock()
        self._reserved: dict[str, _Reservation] = {}
        self._removal: Task | None = None

    @classmethod
    def at(cls, directory: str | os.PathLike[str]) -> Workspace:
        """Return the workspace of a directory, which need not exist. Independent."""
        key = os.getpid(), os.path.realpath(directory)
        return cls._all.setdefault(key, cls(Path(key[1])))

    # -- names ---------------------------------------------------------------------------------------

    def reserve(self, name: str, owner: object, nbytes: int = 0) -> None:
        """Keep sweeps away from a name, before it exists. Independent."""
        self._reserved[name] = _Reservation(owner, nbytes)

    def release(self, name: str) -> None:
        """Leave a name to the next sweep. Independent."""
        self._reserved.pop(name, None)

    def release_all(self, owner: object) -> None:
        """Leave all names of one owner to the next sweep. Independent."""
        with self.changing:
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
        return [name for name in retention.leftovers(self.directory) if not self.is_reserved(name)]

    # -- changes -------------------------------------------------------------------------------------

    def regain(self, lock: RunLock) -> None:
        """Take a lock that was lost again, if the other job is gone; nothing stays reserved then. Root only.

        Raises
        ------
        LockLostError
            If the other job still holds it.
        """
        with self.changing:
            if lock.reclaim():
                self._reserved.clear()  # the other job may have swept it

    def retain(
        self,
        lock: RunLock,
        options: Options,
        mark: Callable[[StepInfo], StepInfo] = retention.unmarked,
        manifests: Manifests | None = None,
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
        mark : callable
            Adds to what is on storage what this job knows of a step.
        manifests : Manifests, optional
            Those that were read before.
        recycler : object, optional
            Who writes over the files of the last retired step: its name is reserved for this owner.
        """
        with self.changing:
            problem = self.finish_removal()
            plan = retention.plan_retention(self.directory, options, mark, manifests)
            if plan.going:
                lock.check()
            reusable: Path | None = None
            hidden: list[Path] = []
            try:
                for info in plan.going:
                    path = self._hide(info.path.name, recycler or self)
                    if path is not None:
                        hidden.append(path)
                if recycler is not None and hidden:
                    reusable = hidden.pop()
            finally:
                self._remove_later(hidden)
            return Retained(plan.n_kept, tuple(info.step for info in plan.going), reusable, problem)

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
        with self.changing:
            drop_stale_pins(self.directory)
            damage.drop_stale(self.directory)
            names = [name for name in self.leftovers() if is_swept(name)]
            replaced = [name for name in sorted(os.listdir(self.directory)) if layout.replaced_original(name)]
            if names or replaced:
                lock.check()
            for act, each in ((self._give_back_name, replaced), (self._hidden, names)):
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

    def retire(self, name: str) -> None:
        """Take a directory out of sight, then remove it; of a symbolic link no more. Root only, under the lock."""
        with self.changing:
            path = self._hide(name, self)
        if path is not None:
            self._remove(path)

    def abandon(self, staged: commit.Staged) -> None:
        """Remove what a failed save left; what cannot be removed is swept later. Root only."""
        try:
            with self.changing:
                self.release(staged.name)
                if _is_other_save(staged):
                    return  # the step that was to be replaced, if not even its name could be given back
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
            Saying how much is needed and how much is free.
        """
        try:
            commit.check_space(self.directory, plan, n_ranks, staged_bytes)
        except NoSpaceError:
            removal = self._removal
            if removal is None:
                raise
            removal.join("files of retired steps are removed, for there is too little free space")
            commit.check_space(self.directory, plan, n_ranks, staged_bytes)

    def finish_removal(self) -> str:
        """Wait until the files of retired steps are removed; return why they could not be, or "". Root only."""
        removal = self._removal
        if removal is None:
            return ""
        removal.join("files of retired steps are removed")
        with self.changing:
            if self._removal is removal:  # last: an interrupted wait is repeated
                self._removal = None
        outcome = removal.outcome
        return outcome.failure.text if outcome is not None and outcome.failure is not None else ""

    # -- the steps of a removal ----------------------------------------------------------------------

    def _hide(self, name: str, owner: object) -> Path | None:
        """Rename a directory to a new name; of anything else remove the name (steps a and b)."""
        path = self.directory / name
        if path.is_symlink() or not path.is_dir():  # a link is never followed
            if files.unlink(path):
                native.fsync_dir(str(self.directory))
            return None
        hidden = self.directory / layout.retired_dirname(layout.new_nonce())
        self.reserve(hidden.name, owner)
        try:
            retention.take_out_of_sight(path, hidden)
        except BaseException:
            self.release(hidden.name)
            raise
        return hidden

    def _hidden(self, name: str) -> list[Path]:
        """Do the same with what may be gone already: another job removed it, or it was published."""
        try:
            path = self._hide(name, self)
        except FileNotFoundError:
            return []
        return [path] if path is not None else []

    def _give_back_name(self, name: str) -> list[Path]:
        """Give a directory that waited for an exchange of names its own back, or hide it if that is taken."""
        original = layout.replaced_original(name)
        assert original is not None
        if not (self.directory / name).is_dir():
            return []
        if os.path.lexists(self.directory / original):
            return self._hidden(name)
        files.rename(self.directory / name, self.directory / original)
        native.fsync_dir(str(self.directory))
        return []

    def _remove(self, path: Path) -> None:
        try:
            files.remove_tree(path)  # step c
        finally:
            self.release(path.name)

    def _remove_later(self, paths: Sequence[Path]) -> None:
        """Remove directories on a thread."""
        if paths:
            self._removal = Task(lambda: self._remove_all(paths), Flag()).start()

    def _remove_all(self, paths: Sequence[Path]) -> None:
        errors: list[OSError] = []
        for path in paths:
            try:
                self._remove(path)
            except OSError as error:
                errors.append(error)
        if errors:
            raise errors[0]


def _is_other_save(staged: commit.Staged) -> bool:
    try:
        return read_manifest(staged.path).save_id != staged.job.save_id
    except HpcckptError:
        return False
