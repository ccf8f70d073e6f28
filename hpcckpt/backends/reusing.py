"""Files of retired steps that are written over, for backends that write a file per rank.

A program may still have such a file open, or mapped into memory, though its step has been retired.  The rank that is
about to write over it therefore asks the kernel for a write lease, which is refused while another program has the file
open, and returns it at once: the file's directory has a hidden name by then, so no program opens it later.
"""

from __future__ import annotations

import fcntl
import os
import signal
import stat
from collections.abc import Iterable
from pathlib import Path

from hpcckpt import native
from hpcckpt.core import files
from hpcckpt.format import layout

HEAD_BYTES = 4096
"""What is zeroed first: without it no reader takes the file for whole."""
_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC


def keep_own_files(path: Path, names: Iterable[str]) -> None:
    """Keep the files of these names, as a manifest has them, if they have no other name; remove the rest. Root only."""
    data = path / layout.DATA
    own = {os.path.basename(name) for name in names}
    for entry in list(os.scandir(data)):
        if entry.name not in own or entry.stat(follow_symlinks=False).st_nlink != 1:
            files.unlink(entry.path)
    native.fsync_dir(str(data))


def open_to_write(where: str, *, is_forced: bool) -> tuple[int, bool]:
    """Open a file of a retired step, invalidated, or else a new one. Independent.

    Parameters
    ----------
    where : str
        Its path.
    is_forced : bool
        Write over it even if others have it open.

    Returns
    -------
    tuple of int and bool
        The descriptor, and whether the file was created.
    """
    fd = open_again(where, is_forced=is_forced)
    if fd is not None:
        return fd, False
    files.unlink(where)
    return os.open(where, _FLAGS | os.O_CREAT | os.O_EXCL, 0o666), True


def open_again(where: str, *, is_forced: bool) -> int | None:
    """Open a file of a retired step and invalidate it durably; return ``None`` if it must stay as it is. Independent.

    That is if it is not there, has another name, is not an ordinary file, or others have it open.
    """
    try:
        fd = os.open(where, _FLAGS)
    except OSError:
        return None
    try:
        found = os.fstat(fd)
        if stat.S_ISREG(found.st_mode) and found.st_nlink == 1 and (is_forced or is_unused(fd)):
            native.write_blocks(fd, [(bytes(HEAD_BYTES), 0)], path=where)
            native.fdatasync(fd, where)
            return fd
    except BaseException:
        os.close(fd)
        raise
    os.close(fd)
    return None


def is_unused(fd: int) -> bool:
    """Return True if it is known that no other program of this node has the file open or mapped. Independent.

    A program that opens the file during the few microseconds of the lease waits until it is returned, and this process
    gets SIGURG, which is ignored by default (without F_SETSIG it would get SIGIO, which ends a process).
    """
    try:
        fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except (OSError, AttributeError):  # EAGAIN: in use; else no leases here, or not on files of another user
        return False
    return True
