"""Rename, link and remove files, and check the storage before an error is reported; read and write whole pieces.

A network file system can carry out a request and lose the answer, for instance when its server restarts.  The client
repeats the request and reports ENOENT, EEXIST, ESTALE or EIO for something that has been done.  After an error each
function here looks whether everything is as it is after success, and then returns normally.

Callers pass names that no other process chooses (they contain a nonce) or that the lock of the run protects.  So if the
source is gone and the target exists, it was this rename.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shlex
import shutil
import stat
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from hpcckpt.errors import CorruptError

PathLike = str | os.PathLike[str]
T = TypeVar("T")

RENAME_EXCHANGE = 2
_AT_FDCWD = -100
_NO_EXCHANGE = {errno.EINVAL, errno.ENOSYS, errno.ENOTSUP}
_ATTEMPTS = 1000
_HANDLER = "onexc" if sys.version_info >= (3, 12) else "onerror"


def rename(source: PathLike, target: PathLike, is_done: Callable[[], bool] | None = None) -> None:
    """Rename a file or directory; a file at `target` is replaced. Independent.

    Parameters
    ----------
    source, target : path_like
        The old and the new name.
    is_done : callable, optional
        Returns True if the target is what the source was. By default it is if the source is gone and the target
        exists.
    """
    try:
        os.rename(source, target)
    except OSError:
        if is_there(source) or not is_there(target) or not (is_done is None or is_done()):
            raise


def exchange(a: PathLike, b: PathLike, spare: PathLike, is_done: Callable[[], bool] | None = None) -> None:
    """Exchange two names atomically, or, where the file system cannot, in three renames. Independent.

    Parameters
    ----------
    a, b : path_like
        Both exist.
    spare : path_like
        A free name for the renames. If the process is killed between them, `b` is free or is what `a` was, and the
        other one has the spare name or `a`.
    is_done : callable, optional
        Returns True if `b` is what `a` was. By default the numbers of the inodes decide.
    """
    before = _inode(a), _inode(b)
    libc = ctypes.CDLL(None, use_errno=True)
    if hasattr(libc, "renameat2"):
        if libc.renameat2(_AT_FDCWD, os.fsencode(a), _AT_FDCWD, os.fsencode(b), RENAME_EXCHANGE) == 0:
            return
        code = ctypes.get_errno()
        if code not in _NO_EXCHANGE:
            if is_there(a) and is_there(b) and (is_done() if is_done else (_inode(b), _inode(a)) == before):
                return
            raise OSError(code, os.strerror(code), os.fspath(b))
    with contextlib.ExitStack() as undo:
        rename(b, spare)
        undo.callback(rename, spare, b)
        rename(a, b, is_done)
        undo.callback(rename, b, a)
        rename(spare, a)
        undo.pop_all()


def link(source: PathLike, target: PathLike) -> None:
    """Give a file a second name; not through a symbolic link. Independent.

    Raises
    ------
    FileExistsError
        If the name is taken by another file.
    """
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        if not is_there(target) or _inode(target) != _inode(source):
            raise


def unlink(path: PathLike) -> bool:
    """Remove a file's name; return False if there was none. Independent."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return False
    except OSError:
        if is_there(path):
            raise
    return True


def in_made_directory(place: PathLike, act: Callable[[], T]) -> T:
    """Make a directory if it does not exist, and call a function that makes a file in it. Independent.

    Such a directory is removed with its last file, by any process or thread.  If it is removed before `act` has made
    its file, both steps are repeated.

    Parameters
    ----------
    place : path_like
        The directory; its parent exists.
    act : callable
        May be called several times.

    Returns
    -------
    Any
        What `act` returns.

    Raises
    ------
    OSError
        If the directory or the file cannot be made, or the directory is removed each of 1,000 times.
    """
    n_left = _ATTEMPTS
    while True:
        try:
            os.mkdir(place)
        except FileExistsError:
            pass
        except OSError:  # some file systems report that it may not be made before they report that it exists
            if not os.path.isdir(place):
                raise
        try:
            return act()
        except FileNotFoundError:
            n_left -= 1
            if not n_left:
                raise


def remove_tree(path: PathLike) -> None:
    """Remove a directory and all that is below it; what is gone already is no error. Independent.

    Raises
    ------
    OSError
        The first one; everything that can be removed is removed all the same.
    """
    errors: list[OSError] = []

    def note(_function: Any, where: str, found: Any) -> None:
        error = found if isinstance(found, OSError) else found[1]
        if is_there(where):
            errors.append(error)

    handler: dict[str, Any] = {_HANDLER: note}
    try:
        shutil.rmtree(path, **handler)
    except RecursionError:  # hpcckpt itself makes no such directories
        text = (
            f"its directories are nested too deeply to be removed here; remove it by: rm -rf {shlex.quote(str(path))}"
        )
        errors.append(OSError(errno.ENAMETOOLONG, text, os.fspath(path)))
    if errors:
        raise errors[0]


def tree(path: PathLike) -> list[os.stat_result]:
    """Return the status of all that is below a directory; follow no link, not even `path`.

    What vanishes meanwhile, and what may not be read, is left out.
    """
    found: list[os.stat_result] = []
    waiting = [os.fspath(path)]
    while waiting:  # not recursive: directories of other users may be nested deeply
        parent = waiting.pop()
        with contextlib.suppress(OSError):
            if not stat.S_ISDIR(os.lstat(parent).st_mode):
                continue
            for name in os.listdir(parent):
                where = os.path.join(parent, name)
                with contextlib.suppress(OSError):
                    found.append(os.lstat(where))
                    if stat.S_ISDIR(found[-1].st_mode):
                        waiting.append(where)
    return found


def read_at(fd: int, nbytes: int, offset: int) -> bytes:
    """Read `nbytes` bytes from `offset` on, fewer only where the file ends. Independent.

    One `os.pread` may return less: a signal, or a network file system, can cut it short.
    """
    parts: list[bytes] = []
    while nbytes > 0 and (part := os.pread(fd, nbytes, offset)):
        parts.append(part)
        nbytes -= len(part)
        offset += len(part)
    return b"".join(parts)


def write_whole(fd: int, data: bytes) -> None:
    """Write all of `data` at the position of a file. Independent."""
    rest = memoryview(data)
    while rest:
        n_written = os.write(fd, rest)
        if n_written == 0:  # without a reason: it would be repeated for ever
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        rest = rest[n_written:]


def is_there(path: PathLike) -> bool:
    """Return True if a directory lists a name, or if that cannot be found out. Independent.

    The directory is listed because that asks the server; a lookup of the name may be answered from a cache.
    """
    parent, name = os.path.split(os.path.abspath(path))
    try:
        return name in os.listdir(parent)
    except FileNotFoundError:
        return False
    except OSError:
        return True


def _inode(path: PathLike) -> tuple[int, int] | None:
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


# -- files of a directory where others may write --------------------------------------------------


def read_bounded(path: str, limit: int) -> bytes:
    """Read an ordinary file of at most `limit` bytes, following no symbolic link."""
    fd = open_regular(path)
    try:
        nbytes = os.fstat(fd).st_size
        if nbytes > limit:
            raise CorruptError(f"{path}: {nbytes} bytes, at most {limit} are accepted")
        with os.fdopen(os.dup(fd), "rb") as file:
            return file.read(nbytes)
    finally:
        os.close(fd)


def open_file(path: PathLike, flags: int, mode: int = 0o666) -> int:
    """Open a file as `os.open` does; with O_NONBLOCK, which is for pipes, wait for a lease all the same.

    On a file server another program may have a lease on the file: the NFS server for a client that wrote it, or Samba.
    The kernel asks for it to be returned, and meanwhile an open that must not wait fails with EAGAIN, as no pipe does.
    """
    try:
        return os.open(path, flags, mode)
    except BlockingIOError:
        return os.open(path, flags & ~os.O_NONBLOCK, mode)


def open_regular(path: str) -> int:
    """Open an ordinary file for reading, refusing symbolic links, devices and pipes; return its descriptor."""
    try:
        fd = open_file(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        if os.path.islink(path):
            raise CorruptError(f"{path}: is a symbolic link, which checkpoints never hold; not followed") from error
        raise
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise CorruptError(f"{path}: is not an ordinary file; not opened")
    except BaseException:
        os.close(fd)
        raise
    return fd
