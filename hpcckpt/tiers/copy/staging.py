"""The staging directory of a copy, and its commit."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Sequence
from pathlib import Path

from hpcckpt.core.plan import FileRecord, SaveJob
from hpcckpt.core.system import FileSystem, OperatingSystem
from hpcckpt.errors import LockLostError, StorageError
from hpcckpt.format import layout
from hpcckpt.format.manifest import Manifest
from hpcckpt.rundir import commit, damage_records
from hpcckpt.rundir.lock import RunLock
from hpcckpt.rundir.workspace import Workspace


def staging_of(destination: Path, manifest: Manifest) -> commit.Staged:
    """Return the staging directory of a copy. Pure."""
    return staged_as(destination, manifest.step, manifest.save_id, manifest.n_ranks)


def staged_as(destination: Path, step: int, save_id: str, n_ranks: int = 1) -> commit.Staged:
    """Return the staging directory of a copy: the next attempt to copy this save uses it again. Pure."""
    name = f".{layout.step_dirname(step)}.tmp-{save_id[:16]}"
    return commit.Staged(SaveJob(save_id, step, n_ranks), destination, name)


def open_staging(path: Path, records: Sequence[FileRecord], files: FileSystem) -> bool:
    """Make the directory, or clear that of an earlier attempt; return True if there was one. Root only.

    Raises
    ------
    StorageError
        If the name is taken by something else.
    """
    is_resumed = files.exists(path)
    for directory in (path, path / layout.DATA):
        if files.is_link(directory) or (files.exists(directory) and not files.is_dir(directory)):
            raise StorageError(f"{directory} is in the way: remove it, and copy again")
        files.mkdir(directory)
    known = {layout.DATA, *(os.path.basename(record.path) for record in records)}
    for directory in (path, path / layout.DATA):
        for name in files.names(directory):
            if name in known:
                continue
            if stat.S_ISDIR(files.lstat(directory / name).st_mode):
                files.remove_tree(directory / name)
            else:
                files.unlink(directory / name)
    files.fsync_dir(path)
    return is_resumed


def commit_staged(
    staged: commit.Staged, manifest: Manifest, lock: RunLock, conflicts: commit.Conflicts, system: OperatingSystem
) -> Path:
    """Commit a step of which every data file is there, durable and verified. Root only, under the lock.

    Raises
    ------
    LockLostError
        If the lock is another job's, or was meanwhile: that job may have removed what was copied.
    """
    workspace, files = Workspace.at(staged.directory, system), system.files
    with workspace.commit_mutex:
        if not workspace.is_reserved(staged.name):
            raise LockLostError(f"another job held {staged.directory} meanwhile; nothing was committed, copy again")
        files.unlink(staged.path / layout.MANIFEST)  # of an attempt that was killed just before it was committed
        with workspace.renaming(lock) as renames:
            path = commit.commit_step(staged, manifest, renames, conflicts)
        # of the copy that this one replaces
        damage_records.clear(staged.directory, manifest.step, manifest.save_id, files)
        workspace.release(staged.name)
    if conflicts.existing == "good":
        with contextlib.suppress(OSError):  # the step is there: what cannot be removed is swept later
            workspace.retire(staged.name)  # the other save, which now has the name of the staging directory
    return path
