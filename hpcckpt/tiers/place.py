"""Where scratch is, who sees it, and which run directory it belongs to."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from hpcckpt import discovery, files, layout, native, publishing
from hpcckpt.collective.communicator import Communicator
from hpcckpt.errors import HpcckptError, OptionError, from_os_error
from hpcckpt.private import check_private, make_private
from hpcckpt.run import Places

MARK = ".tier"


def scratch_directory(directory: Path, scratch: Path) -> Path:
    """Return where the steps of a run stand on scratch, which other runs may use too. Pure."""
    real = os.path.realpath(directory)
    digest = hashlib.sha256(os.fsencode(real)).hexdigest()[:12]
    return scratch / f"{os.path.basename(real) or 'run'}-{digest}"


def make_scratch(near: Path) -> None:
    """Make our directory on scratch for this user alone, durably, or check the one that exists. Independent.

    Its name can be predicted by all who may write beside it, and all that does not count is removed from it.

    Raises
    ------
    UnsafeDirectoryError
        If others own it or can write it, or it is a symbolic link.
    """
    with translated("open scratch"):
        publishing.make_directory(near.parent)
        if make_private(near):
            native.fsync_dir(str(near.parent))


def check_scratch(near: Path) -> None:
    """Refuse our directory on scratch as `make_scratch` does, if there is one. Independent."""
    with translated("open scratch"):
        check_private(near)


def find_places(comm: Communicator, scratch: Path) -> Places | None:
    """Find out which ranks see the same scratch directory; ``None`` if all do. Collective.

    A place is where ranks see each other's marks, whatever their hosts are called.

    Raises
    ------
    CollectiveError
        If ranks cannot make theirs, or see what does not fit together; names them.
    """

    def leave_mark() -> Path:
        path = scratch / f".seen-{layout.new_nonce()}"
        _leave_mark(path)
        return path

    mark = comm.on_root("open scratch", leave_mark)
    try:
        is_one = all(comm.allgather(os.path.exists(scratch / mark.name)))
    finally:
        if comm.is_root:
            with contextlib.suppress(OSError):
                files.unlink(mark)
    return None if is_one else _several(comm, scratch, mark.name)


def _several(comm: Communicator, scratch: Path, nonce: str) -> Places:
    """Let each rank leave a mark in its scratch directory, and look whose else it finds there. Collective."""
    own = scratch / f"{nonce}-{comm.rank}"

    def seen() -> tuple[int, ...]:
        with translated("open scratch"):
            names = [name for name in os.listdir(scratch) if name.startswith(f"{nonce}-")]
            user = own.lstat().st_uid  # marks of another user are not a rank's
            ours = (name for name in names if (scratch / name).lstat().st_uid == user)
            return tuple(sorted(int(name.rpartition("-")[2]) for name in ours))

    try:
        comm.agree("open scratch", lambda: _leave_mark(own))
        seen_by = comm.allgather(comm.agree("open scratch", seen))
    finally:
        with contextlib.suppress(OSError):
            files.unlink(own)
    odd = [rank for rank, ranks in enumerate(seen_by) if rank not in ranks or any(seen_by[r] != ranks for r in ranks)]
    if odd:
        shown = ", ".join(map(str, odd[:8])) + (" and more" if len(odd) > 8 else "")
        raise OptionError(
            f"options.scratch: rank {shown} and others do not see the same marks in {scratch}; give a "
            "directory on the disk of each node, or one that all ranks see"
        )
    return Places(tuple(ranks[0] for ranks in seen_by))


def _leave_mark(path: Path) -> None:
    """Make an empty file of a new name: a name that another user has taken is an error, not followed. Independent."""
    with translated("open scratch"):
        publishing.make_directory(path.parent)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))


def mark_on_scratch(near: Path) -> str:
    """Return the mark of our directory on scratch, which must be this user's alone; "" if it has none. Independent.

    Raises
    ------
    UnsafeDirectoryError, HpcckptError
        As `check_scratch` and `mark_of` do.
    """
    check_scratch(near)
    return mark_of(near)


def mark_of(directory: Path) -> str:
    """Return what says which run directory a scratch directory belongs to; "" if nothing. Root only.

    Raises
    ------
    HpcckptError
        If it cannot be read: it is unknown then, and what is on scratch may be the only copy.
    """
    with translated("look whose scratch it is"):
        try:
            return discovery.read_bounded(str(directory / MARK), 64).decode("ascii", "replace")
        except (FileNotFoundError, NotADirectoryError):
            return ""


def put_mark(directory: Path, mark: str = "") -> str:
    """Write a mark, a new one by default, durably. Root only."""
    mark = mark or layout.new_nonce()
    draft = directory / f"{MARK}-{layout.new_nonce()}"
    try:
        with open(draft, "x", encoding="ascii") as file:
            file.write(mark)
            file.flush()
            native.fsync(file.fileno(), draft)
        files.rename(draft, directory / MARK)
    finally:
        files.unlink(draft)
    native.fsync_dir(str(directory))
    return mark


def disown(directory: Path) -> None:
    """Let nothing that is on scratch, wherever that is, count for a run directory any more. Root only."""
    with translated("disown scratch"):
        if os.path.lexists(directory / MARK):
            files.unlink(directory / MARK)
            native.fsync_dir(str(directory))


@contextlib.contextmanager
def translated(doing: str) -> Iterator[None]:
    """Turn system errors of the block into ours."""
    try:
        yield
    except OSError as error:
        raise error if isinstance(error, HpcckptError) else from_os_error(error, doing) from error
