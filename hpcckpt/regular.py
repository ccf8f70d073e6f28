"""Reading files of a run directory, where another user may have put something that is not an ordinary file."""

from __future__ import annotations

import os
import stat

from hpcckpt.errors import CorruptError, ManifestError


def read_bounded(path: str, limit: int) -> bytes:
    """Read an ordinary file of at most `limit` bytes, following no symbolic link."""
    fd = open_regular(path)
    try:
        nbytes = os.fstat(fd).st_size
        if nbytes > limit:
            raise ManifestError(f"{path}: {nbytes} bytes, at most {limit} are accepted; use an older step")
        with os.fdopen(os.dup(fd), "rb") as file:
            return file.read(nbytes)
    finally:
        os.close(fd)


def open_regular(path: str) -> int:
    """Open an ordinary file for reading, refusing symbolic links, devices and pipes; return its descriptor."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        if os.path.islink(path):
            raise CorruptError(f"{path}: is a symbolic link, which checkpoints never hold; not followed") from error
        raise
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise CorruptError(f"{path}: is not an ordinary file; not opened")
    return fd
