"""What makes written bytes survive a power cut; the same for both implementations.

CPython gives up the GIL in these calls and repeats them after a signal, so native code would add nothing.
After an error of fsync the kernel may have dropped the dirty pages and report success the next time: the caller must
give up the file and not retry.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator

Path = str | os.PathLike[str]
_sync_data = getattr(os, "fdatasync", os.fsync)  # macOS has no fdatasync


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Put the path of the file into an OSError that does not name it yet."""
    try:
        yield
    except OSError as error:
        if not os.fspath(path) or error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, os.fspath(path)) from None


def fsync(fd: int, path: Path = "") -> None:
    """Wait until a file's bytes and metadata are on storage.

    Parameters
    ----------
    fd
        Open file.
    path
        Its name, for the error.

    Raises
    ------
    OSError
        With errno, reason and path.
    """
    with naming(path):
        os.fsync(fd)


def fdatasync(fd: int, path: Path = "") -> None:
    """Wait until a file's bytes, and the metadata needed to read them back, are on storage.

    Parameters
    ----------
    fd
        Open file.
    path
        Its name, for the error.

    Raises
    ------
    OSError
        With errno, reason and path.
    """
    with naming(path):
        _sync_data(fd)


def fsync_dir(path: Path) -> None:
    """Wait until the entries of a directory (files created, renamed, removed) are on storage.

    Parameters
    ----------
    path
        The directory.

    Raises
    ------
    OSError
        With errno, reason and path.
    """
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fsync(fd, path)
    except OSError as error:
        # Some file systems (SMB, some FUSE ones) cannot sync a directory at all and say EINVAL; PostgreSQL's
        # fsync_fname lets it pass too, since every save would fail there and no retry could help.
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(fd)
