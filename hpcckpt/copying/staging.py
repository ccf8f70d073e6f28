"""Where a copy is brought together, and how it gets its name."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

from hpcckpt import damage, files, layout, native
from hpcckpt.collective import commit
from hpcckpt.errors import LockLostError, StorageError
from hpcckpt.lock import RunLock
from hpcckpt.manifest import Manifest
from hpcckpt.plan import FileRecord, SaveJob
from hpcckpt.workspace import Workspace


def staging_of(destination: Path, manifest: Manifest) -> commit.Staged:
    """Return where a step is brought together. Pure."""
    return staged_as(destination, manifest.step, manifest.save_id, manifest.n_ranks)


def staged_as(destination: Path, step: int, save_id: str, n_ranks: int = 1) -> commit.Staged:
    """Return where a save is brought together: a name that the next attempt to copy it finds again. Pure."""
    name = f".{layout.step_dirname(step)}.tmp-{save_id[:16]}"
    return commit.Staged(SaveJob(save_id, step, n_ranks), destination, name)


def open_staging(path: Path, records: Sequence[FileRecord]) -> bool:
    """Make the directory, or clear what does not belong there from what an earlier attempt left; say which. Root only.

    Raises
    ------
    StorageError
        If the name is taken by something else.
    """
    is_resumed = os.path.lexists(path)
    for directory in (path, path / layout.DATA):
        if directory.is_symlink() or (directory.exists() and not directory.is_dir()):
            raise StorageError(f"{directory} is in the way: remove it, and copy again")
        directory.mkdir(exist_ok=True)
    known = {layout.DATA, *(os.path.basename(record.path) for record in records)}
    for entry in [*os.scandir(path), *os.scandir(path / layout.DATA)]:
        if entry.name in known:
            continue
        if entry.is_dir(follow_symlinks=False):
            files.remove_tree(entry.path)
        else:
            files.unlink(entry.path)
    native.fsync_dir(str(path))
    return is_resumed


def publish(staged: commit.Staged, manifest: Manifest, lock: RunLock | None, way: commit.Way) -> Path:
    """Publish a step of which every data file is there, durable and verified. Root only, under the lock.

    Raises
    ------
    LockLostError
        If the lock is another job's, or was meanwhile: that job may have removed what was copied.
    """
    workspace = Workspace.at(staged.directory)
    with workspace.changing:
        if not workspace.is_reserved(staged.name):
            raise LockLostError(f"another job held {staged.directory} meanwhile; nothing was published, copy again")
        files.unlink(staged.path / layout.MANIFEST)  # of an attempt that was killed just before it got its name
        path = commit.publish(staged, manifest, lock, way)
        damage.clear(staged.directory, manifest.step, manifest.save_id)  # found in the copy that this one replaces
        workspace.release(staged.name)
    if way.there == "good":
        with contextlib.suppress(OSError):  # the step is there: what cannot be removed is swept later
            workspace.retire(staged.name)  # the other save, which now has the name of the staging directory
    return path
