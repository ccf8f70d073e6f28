"""Directories that this user alone may write, below places that all users share.

A name in ``/tmp`` or on the scratch disk of a node that others can predict may be taken by another user before us.
What is found there is trusted only if its owner is this user, and neither its group nor others can write there.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import stat
from collections.abc import Collection
from pathlib import Path

from hpcckpt.errors import UnsafeDirectoryError

MODE = 0o700
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def user_cache() -> Path | None:
    """Return the directory for caches of this user; ``None`` where there is no home. Independent."""
    chosen = os.environ.get("XDG_CACHE_HOME")
    try:
        return Path(chosen) if chosen else Path.home() / ".cache"
    except RuntimeError:  # HOME is unset, and this user is in no list of users: in a container
        return None


def make_private(path: Path) -> bool:
    """Make a directory for this user alone, or check the one that exists; return whether it is new. Independent.

    A directory of this user that others can only read, as earlier versions made them, gets the mode 0700.

    Raises
    ------
    UnsafeDirectoryError
        If the name is taken by something that others own or can write, or its parent lets others replace it.
    OSError
        If it cannot be made.
    """
    parent = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _check_parent(path, os.fstat(parent))
        is_new = True
        try:
            os.mkdir(path.name, MODE, dir_fd=parent)
        except FileExistsError:
            is_new = False
        _check(path, parent)
        return is_new
    finally:
        os.close(parent)


def check_private(path: Path) -> None:
    """Refuse a directory that others own or can write; one that does not exist is accepted. Independent.

    Raises
    ------
    UnsafeDirectoryError
        As `make_private` does.
    """
    try:
        parent = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return
    try:
        if os.path.lexists(path):
            _check_parent(path, os.fstat(parent))
            with contextlib.suppress(FileNotFoundError):
                _check(path, parent)
    finally:
        os.close(parent)


def _check(path: Path, parent: int) -> None:
    """Check what has the name; what is checked is what was opened, whatever happens to the name meanwhile."""
    found = os.stat(path.name, dir_fd=parent, follow_symlinks=False)
    if stat.S_ISLNK(found.st_mode):
        raise UnsafeDirectoryError(f"{path} is a symbolic link: remove it, or choose another directory")
    _check_stat(path, found)
    opened = os.open(path.name, _OPEN, dir_fd=parent)
    try:
        found = os.fstat(opened)
        _check_stat(path, found)
        if stat.S_IMODE(found.st_mode) & 0o077:
            with contextlib.suppress(OSError):  # a file system without modes
                os.fchmod(opened, MODE)
    finally:
        os.close(opened)


def _check_stat(path: Path, found: os.stat_result) -> None:
    problem = problem_of(found)
    if problem:
        raise UnsafeDirectoryError(
            f"{path} {problem}: what is in it may be from another user. Remove it, or choose another directory"
        )


def _check_parent(path: Path, found: os.stat_result) -> None:
    if found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
        raise UnsafeDirectoryError(
            f"{path.parent} has mode {mode_text(found)}: all users can replace what is in it. Choose a directory of "
            f"your own (mkdir -m 700 {path.parent}/$USER), or set its sticky bit (chmod +t)"
        )


def problem_of(found: os.stat_result) -> str:
    """Return why a directory is not this user's alone; "" if it is. Pure, but for the user."""
    if not stat.S_ISDIR(found.st_mode):
        return "is not a directory"
    if found.st_uid != os.geteuid():
        return f"belongs to {user_text(found.st_uid)} (mode {mode_text(found)}), not to {user_text(os.geteuid())}"
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"can be written by other users (mode {mode_text(found)})"
    return ""


def why_not_safe(path: Path, owners: Collection[int] = ()) -> str:
    """Return why others may have put, or could replace, a file or directory whose code would be run. Independent.

    It, and each directory on the path to it, must belong to root, this user or one of `owners`, and neither group nor
    others may write there. Only above such a directory may a sticky one be writable (``/tmp``): its entries cannot be
    replaced.
    """
    real = Path(os.path.realpath(path))
    for place in (real, *real.parents):
        try:
            found = place.stat()
        except OSError as error:
            return f"{place}: {error.strerror}"
        if found.st_uid not in {0, os.geteuid(), *owners}:
            return f"{place} belongs to {user_text(found.st_uid)}"
        is_shared = bool(found.st_mode & stat.S_ISVTX) and place not in {real, real.parent if real.is_file() else real}
        if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not is_shared:
            return f"{place} can be written by other users (mode {mode_text(found)}): chmod go-w {place}"
    return ""


def mode_text(found: os.stat_result) -> str:
    """Return the permissions as people write them: ``0755``. Pure."""
    return f"{stat.S_IMODE(found.st_mode):04o}"


def user_text(uid: int) -> str:
    """Return the name and number of a user. Independent."""
    try:
        return f"user {pwd.getpwuid(uid).pw_name} ({uid})"
    except KeyError:
        return f"user {uid}"
