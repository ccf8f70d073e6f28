"""A file or directory that is there whole or not at all, and never takes another one's place unasked.

Steps::

    1. write a temporary file beside it, with the mode of a file that it replaces, fsync it (all files and
       directories, if it is a directory)
    2. rename it into place; where nothing may be overwritten, link it there instead, which fails
       if the name is taken
    3. fsync the directory

A symbolic link that may be overwritten stays, and what it points to is replaced, as when a file is opened for writing.
A device, pipe or socket is never replaced.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hpcckpt import native
from hpcckpt.core import files
from hpcckpt.errors import HpcckptError, OptionError, from_os_error
from hpcckpt.format import layout

_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
_SPECIAL = {stat.S_IFCHR: "device", stat.S_IFBLK: "device", stat.S_IFIFO: "pipe", stat.S_IFSOCK: "socket"}


@contextmanager
def atomic_path(path: Path, *, is_overwriting: bool = False, follows_links: bool = True) -> Iterator[Path]:
    """Give a temporary path to write to; at the end of the block it becomes `path`, durably.

    Parameters
    ----------
    path : pathlib.Path
        The file.
    is_overwriting : bool
        Replace one that is there.
    follows_links : bool
        Replace what a symbolic link points to, and not the link, as is due in a run directory.

    Raises
    ------
    OptionError
        If `path` exists and may not be overwritten, is no file, or its directory does not exist.
    NoSpaceError, ReadOnlyError, StorageError
        If it cannot be written.
    """
    path = _target_of(path) if is_overwriting and follows_links else path
    check_free(path, is_overwriting=is_overwriting, follows_links=follows_links)
    temporary = path.with_name(f".tmp-{layout.new_nonce()}.{path.name}")
    try:
        yield temporary
        fsync_file(temporary, path)
        _put_in_place(temporary, path, is_overwriting=is_overwriting)
        native.fsync_dir(str(path.parent))
    except HpcckptError:
        raise
    except OSError as error:
        raise from_os_error(error, f"write {path}") from error
    finally:
        files.unlink(temporary)


@contextmanager
def atomic_directory(path: Path, *, is_overwriting: bool = False) -> Iterator[Path]:
    """Give the path of a temporary directory to make; at the end of the block it becomes `path`, durably.

    Raises
    ------
    OptionError
        If `path` exists and may not be overwritten, is a file, or its parent does not exist.
    NoSpaceError, ReadOnlyError, StorageError
        If it cannot be written.
    """
    path = _target_of(path) if is_overwriting else path
    check_free(path, is_overwriting=is_overwriting, is_for_directory=True)
    temporary = path.with_name(f".tmp-{layout.new_nonce()}.{path.name}")
    try:
        yield temporary
        for directory, _, names in os.walk(temporary):
            for file in names:
                fsync_file(Path(directory, file))
            native.fsync_dir(directory)
        if is_overwriting and path.exists():
            mode = stat.S_IMODE(path.stat().st_mode)
            if mode != stat.S_IMODE(temporary.stat().st_mode):  # some file systems refuse every chmod
                temporary.chmod(mode)
            spare = path.with_name(layout.replaced_dirname(path.name, layout.new_nonce()))
            files.exchange(temporary, path, spare)  # what was there goes with the temporary name
        else:
            check_free(path, is_for_directory=True)
            files.rename(temporary, path)
        native.fsync_dir(str(path.parent))
    except HpcckptError:
        raise
    except OSError as error:
        raise from_os_error(error, f"write {path}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def check_free(
    path: Path, *, is_overwriting: bool = False, is_for_directory: bool = False, follows_links: bool = True
) -> None:
    """Raise if `path` may not be written."""
    special = _special_kind(path, follows_links=follows_links)
    if special:
        raise OptionError(f"{path} is a {special}; give the name of a {'directory' if is_for_directory else 'file'}")
    if path.is_dir() and not is_for_directory:
        raise OptionError(f"{path} is a directory; give the name of a file")
    if is_for_directory and path.exists() and not path.is_dir():
        raise OptionError(f"{path} is a file; give the name of a directory")
    if os.path.lexists(path) and not is_overwriting:
        raise OptionError(f"{path} exists; pass --force to overwrite it, or choose another name")
    if not path.parent.is_dir():
        raise OptionError(f"{path.parent} does not exist; make it first")


def fsync_file(path: Path, like: Path | None = None) -> None:
    """Wait until the bytes of a file are on storage; give it the mode of another file, if there is that one."""
    fd = os.open(path, os.O_RDONLY)
    try:
        if like is not None and like.is_file() and not like.is_symlink():
            mode = stat.S_IMODE(like.stat().st_mode)
            if mode != stat.S_IMODE(os.fstat(fd).st_mode):  # some file systems refuse every chmod
                os.fchmod(fd, mode)
        native.fsync(fd, str(path))
    finally:
        os.close(fd)


def _target_of(path: Path) -> Path:
    """Return what a symbolic link points to, also if that does not exist; any other path as it is.

    /dev/stdout stays as it is: it may point to a pipe, which has no path.
    """
    return Path(os.path.realpath(path)) if path.is_symlink() and not _special_kind(path) else path


def _special_kind(path: Path, *, follows_links: bool = True) -> str:
    """Return what a path is that is neither a file nor a directory, nor missing."""
    try:
        return _SPECIAL.get(stat.S_IFMT(path.stat(follow_symlinks=follows_links).st_mode), "")
    except OSError:
        return ""


def _put_in_place(temporary: Path, path: Path, *, is_overwriting: bool) -> None:
    if is_overwriting:
        files.rename(temporary, path)
        return
    try:
        files.link(temporary, path)
    except FileExistsError:
        raise OptionError(f"{path} appeared while it was being written; it was left as it is") from None
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        check_free(path)
        files.rename(temporary, path)
