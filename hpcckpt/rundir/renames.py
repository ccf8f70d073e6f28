"""The renames of a commit, undone if it fails, whether or not the storage reported which of them were carried out.

1. Each rename is noted before it is requested.  A request that fails may have been carried out all the same.
2. If the commit fails, the directory is listed, and what was renamed gets its name back, the newest first.
3. If the storage refuses that too, the rest stays noted, and :class:`hpcckpt.rundir.workspace.Workspace` repeats 2
   before it commits, retires or removes anything else, and before this job lists or restores steps.

After the lock was lost nothing is undone: another job may have resumed from what is there.  A step that was pinned
while it had its name, or that this job resumed from, keeps the name.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hpcckpt.errors import HpcckptError, RetryError, StorageError
from hpcckpt.format import layout
from hpcckpt.rundir.discovery import read_manifest
from hpcckpt.rundir.lock import RunLock
from hpcckpt.rundir.pins import is_pinned


class Renames:
    """Renames in a run directory that can be undone. Root only.

    Parameters
    ----------
    directory : pathlib.Path
        The run directory; all names are names in it.
    lock : RunLock
        Of this process; held while names are given back.

    Attributes
    ----------
    save_id, final : str, pathlib.Path or None
        The save that was renamed to its step, and where that is; "" and None before.
    is_kept : bool
        True if the step keeps its name though its commit failed.
    """

    def __init__(self, directory: Path, lock: RunLock) -> None:
        self.directory, self.lock = directory, lock
        self.save_id, self.is_kept = "", False
        self.final: Path | None = None
        self._system, self._files = lock.system, lock.system.files
        self._noted: list[Callable[[], None]] = []

    def move(self, source: Path, target: Path) -> None:
        """Rename a directory to a name that no other process chooses. Root only."""
        self._note(lambda: self._rename_back(source, target))
        self._files.rename(source, target)

    def to_step(self, staged: Path, final: Path, save_id: str, pinnable: int | None = None) -> None:
        """Rename a save to the name of a step, which is free. Root only.

        Parameters
        ----------
        staged, final : pathlib.Path
            The staging directory, and where the step will be.
        save_id : str
            The save in the staging directory.
        pinnable : int, optional
            The step, if a pin of its number means this save.
        """
        if self._files.exists(final):
            raise StorageError(f"{final} appeared while the step was being written; nothing was committed")
        self.save_id, self.final, was_visible = save_id, final, False

        def undo() -> None:
            nonlocal was_visible
            if self._has_save(final, save_id):
                was_visible = True
                self._rename_back(staged, final)
            if was_visible and pinnable is not None and is_pinned(self.directory, pinnable, staged, self._system):
                self._files.rename(staged, final)
                self.is_kept = True
                self._noted[1:] = self._noted[-1:]  # and what made room for it keeps its new name

        self._note(undo)
        self._files.rename(staged, final, lambda: self._has_save(final, save_id))

    def exchange(self, staged: Path, final: Path, save_id: str) -> None:
        """Exchange the names of a save and of the step that it replaces. Root only.

        If a kill leaves `final` without its name, the next sweep restores it.
        """
        self.save_id, self.final = save_id, final
        spare = self.directory / layout.replaced_dirname(final.name, layout.new_nonce())

        def undo() -> None:  # also after each of the three renames that an exchange may consist of
            if self._has_save(final, save_id):
                if staged.name in self._files.names(self.directory):
                    self._files.exchange(final, staged, spare)
                else:
                    self._files.rename(final, staged)
            self._rename_back(final, spare)

        self._note(undo)
        self._files.exchange(staged, final, spare, lambda: self._has_save(final, save_id))

    def undo(self) -> None:
        """Give every directory its name back, durably; if that fails, it may be repeated. Root only.

        Raises
        ------
        OSError
            If the storage refuses it.
        """
        if not self._noted or not self.lock.is_mine():
            return
        while self._noted:
            self._noted[-1]()
            self._noted.pop()

    def _note(self, undo: Callable[[], None]) -> None:
        if not self._noted:
            self._noted.append(lambda: self._files.fsync_dir(self.directory))  # the last of what is undone
        self._noted.append(undo)

    def _rename_back(self, source: Path, target: Path) -> None:
        """Undo a rename, if it was carried out."""
        names = self._files.names(self.directory)
        if target.name in names and source.name not in names:
            self._files.rename(target, source)

    def _has_save(self, path: Path, save_id: str) -> bool:
        """Return True if a directory holds this save; raise if that cannot be read now."""
        self._files.names(self.directory)  # asks the server; else the name may be looked up in a cache
        try:
            return read_manifest(path, self._files).save_id == save_id
        except RetryError:
            raise
        except HpcckptError:
            return False
