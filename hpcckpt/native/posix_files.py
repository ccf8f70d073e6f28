"""The file system of this machine, as the engine uses it (:class:`hpcckpt.core.system.FileSystem`)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from hpcckpt import native
from hpcckpt.core import files
from hpcckpt.core.system import CLOCK, EXECUTOR, OperatingSystem, PathLike

T = TypeVar("T")


class PosixFileSystem:
    """Files by `os`, :mod:`hpcckpt.core.files` and :mod:`hpcckpt.native`."""

    # directories

    def names(self, path: PathLike) -> list[str]:
        """Return the names in a directory."""
        return os.listdir(path)

    def tree(self, path: PathLike) -> list[os.stat_result]:
        """Return the status of all that is below a directory, without what vanishes meanwhile; follow no link."""
        return files.tree(path)

    def mkdir(self, path: PathLike) -> None:
        """Make a directory; one that exists is no error."""
        Path(path).mkdir(exist_ok=True)

    def in_made_directory(self, path: PathLike, act: Callable[[], T]) -> T:
        """Make a directory if it does not exist, call a function that makes a file in it, and return its result."""
        return files.in_made_directory(path, act)

    def rmdir(self, path: PathLike) -> None:
        """Remove an empty directory."""
        os.rmdir(path)

    def remove_tree(self, path: PathLike) -> None:
        """Remove a directory and all that is below it."""
        files.remove_tree(path)

    def fsync_dir(self, path: PathLike) -> None:
        """Wait until the entries of a directory are on storage."""
        native.fsync_dir(path)

    def free_space(self, path: PathLike) -> os.statvfs_result:
        """Return the sizes of the file system of a directory."""
        return os.statvfs(path)

    # names

    def rename(self, source: PathLike, target: PathLike, is_done: Callable[[], bool] | None = None) -> None:
        """Rename a file or directory; a file at `target` is replaced."""
        files.rename(source, target, is_done)

    def exchange(self, a: PathLike, b: PathLike, spare: PathLike, is_done: Callable[[], bool] | None = None) -> None:
        """Exchange two names atomically, or in three renames through a free name."""
        files.exchange(a, b, spare, is_done)

    def link(self, source: PathLike, target: PathLike) -> None:
        """Give a file a second name."""
        files.link(source, target)

    def unlink(self, path: PathLike) -> bool:
        """Remove a file's name; return False if there was none."""
        return files.unlink(path)

    def real_path(self, path: PathLike) -> str:
        """Return an absolute path without symbolic links."""
        return os.path.realpath(path)

    # status

    def stat(self, path: PathLike) -> os.stat_result:
        """Return the status of what a name leads to."""
        return os.stat(path)

    def lstat(self, path: PathLike) -> os.stat_result:
        """Return the status of a name; follow no link."""
        return os.lstat(path)

    def exists(self, path: PathLike) -> bool:
        """Return True if a name exists, even if it is a link that leads nowhere."""
        return os.path.lexists(path)

    def is_link(self, path: PathLike) -> bool:
        """Return True if a name is a symbolic link."""
        return os.path.islink(path)

    def is_dir(self, path: PathLike) -> bool:
        """Return True if a name leads to a directory."""
        return Path(path).is_dir()

    def touch(self, path: PathLike | int) -> None:
        """Set the times of a file, or of an open one, to now."""
        os.utime(path)

    # files

    def open(self, path: PathLike, flags: int, mode: int = 0o666) -> int:
        """Open a file as `os.open` does; return its descriptor."""
        return files.open_file(path, flags, mode)

    def open_regular(self, path: str) -> int:
        """Open an ordinary file for reading; refuse links, devices and pipes."""
        return files.open_regular(path)

    def close(self, fd: int) -> None:
        """Close an open file."""
        os.close(fd)

    def fstat(self, fd: int) -> os.stat_result:
        """Return the status of an open file."""
        return os.fstat(fd)

    def read_at(self, fd: int, nbytes: int, offset: int) -> bytes:
        """Read bytes from an offset on, fewer only where the file ends."""
        return files.read_at(fd, nbytes, offset)

    def read_bounded(self, path: str, limit: int) -> bytes:
        """Read an ordinary file of at most `limit` bytes; refuse links."""
        return files.read_bounded(path, limit)

    def write_whole(self, fd: int, data: bytes) -> None:
        """Write all bytes at the position of an open file."""
        files.write_whole(fd, data)

    def write_file(self, path: PathLike, data: bytes, *, is_new: bool = False, is_durable: bool = False) -> None:
        """Write a file, which must not exist if it `is_new`; wait until it is on storage if it `is_durable`."""
        flags = os.O_WRONLY | os.O_CREAT | (os.O_EXCL if is_new else os.O_TRUNC) | os.O_CLOEXEC
        fd = os.open(path, flags, 0o666)
        try:
            files.write_whole(fd, data)
            if is_durable:
                native.fsync(fd, path)
        finally:
            os.close(fd)

    def truncate(self, fd: int, nbytes: int) -> None:
        """Set the length of an open file."""
        os.ftruncate(fd, nbytes)

    def fsync(self, fd: int, path: PathLike = "") -> None:
        """Wait until an open file is on storage; `path` is for the error."""
        native.fsync(fd, path)

    def fdatasync(self, fd: int, path: PathLike = "") -> None:
        """Wait until the bytes of an open file are on storage."""
        native.fdatasync(fd, path)

    # blocks of data

    def uncache(self, fd: int) -> None:
        """Have the next read of an open file that is on storage come from there, if the system can do that."""
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def write_blocks(self, fd: int, pieces: Iterable[tuple[Any, int]], **options: Any) -> list[list[int]]:
        """Write buffers at offsets; return the checksums of their blocks."""
        return native.write_blocks(fd, pieces, **options)

    def read_blocks(
        self, fd: int, pieces: Iterable[tuple[Any, int, Sequence[int] | None]], **options: Any
    ) -> list[tuple[int, int]]:
        """Read into buffers; return the blocks with other checksums."""
        return native.read_blocks(fd, pieces, **options)


POSIX = PosixFileSystem()
REAL = OperatingSystem(POSIX, CLOCK, EXECUTOR)
"""What everything uses unless it is given another one."""
