"""What a file system can do besides writing, tried with a small file: locks, links, renaming, syncing.

HDF5 locks the files it opens; run locks, and steps that share files with earlier ones, use hard links; a step
becomes visible by being renamed.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from hpcckpt.tools.doctor.finding import Finding

PREFIX = ".hpcckpt-doctor-"
_NO_HDF5 = "export HDF5_USE_FILE_LOCKING=FALSE for other programs that open HDF5 files there; hpcckpt locks none"


def findings(directory: Path) -> Iterator[Finding]:
    """Yield what the file system of a directory that can be written does and does not do. Independent."""
    path = directory / f"{PREFIX}{secrets.token_hex(8)}"
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        message = f"no file can be made in {directory}: {error.strerror}"
        yield Finding("writing", "problem", message, "choose another one")
        return
    try:
        yield _writing(file, path)
        yield _locking(file)
        yield _linking(path)
    finally:
        os.close(file)
        for left in (path, _other(path)):
            with suppress(OSError):
                left.unlink()


def _other(path: Path) -> Path:
    return path.with_name(f"{path.name}-2")


def _writing(file: int, path: Path) -> Finding:
    def sync_directory() -> None:
        held = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(held)
        finally:
            os.close(held)

    def rename_and_back() -> None:
        os.rename(path, _other(path))
        os.rename(_other(path), path)

    steps: tuple[tuple[str, Callable[[], object]], ...] = (
        ("write", lambda: os.write(file, b"hpcckpt")),
        ("fsync", lambda: os.fsync(file)),
        ("rename", rename_and_back),
        ("fsync of a directory", sync_directory),
    )
    for name, act in steps:
        if reason := _why_not(act):
            return Finding("writing", "problem", f"{name} fails: {reason}", "choose another file system")
    return Finding("writing", "ok", "files can be written, synced and renamed")


def _locking(file: int) -> Finding:
    failed = []
    for name, lock in (("flock", fcntl.flock), ("fcntl", fcntl.lockf)):
        if reason := _why_not(lambda lock=lock: lock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)):  # type: ignore[misc]
            failed.append(f"{name}: {reason}")
        else:
            lock(file, fcntl.LOCK_UN)
    if failed:
        return Finding("file locks", "warning", f"do not work here ({'; '.join(failed)})", _NO_HDF5)
    return Finding("file locks", "ok", "flock and fcntl work")


def _linking(path: Path) -> Finding:
    reason = _why_not(lambda: os.link(path, _other(path)))
    if not reason:
        return Finding("hard links", "ok", "work")
    remedy = "incremental=True has no use here: unchanged tensors are written again; all else works"
    return Finding("hard links", "warning", f"do not work here: {reason}", remedy)


def _why_not(act: Callable[[], object]) -> str:
    try:
        act()
    except OSError as error:
        return f"{error.strerror} ({errno.errorcode.get(error.errno or 0, error.errno)})"
    return ""
