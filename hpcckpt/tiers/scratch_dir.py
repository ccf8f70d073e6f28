"""Where scratch is, which ranks see the same directory, and which run directory it belongs to."""

from __future__ import annotations

import contextlib
import hashlib
import operator
import os
from collections.abc import Iterator
from pathlib import Path

from hpcckpt.collective.communicator import Communicator
from hpcckpt.core.private_dirs import check_private, make_private
from hpcckpt.core.system import FileSystem
from hpcckpt.errors import CorruptError, HpcckptError, OptionError, StorageError, from_os_error
from hpcckpt.format import layout
from hpcckpt.native.posix_files import POSIX
from hpcckpt.rundir.run_directory import NodeMap, make_directory

OWNER_FILE = ".tier"
"""In both tiers: the identity of the run directory, by which a scratch directory belongs to it."""


def scratch_directory(directory: Path, scratch: Path, files: FileSystem = POSIX) -> Path:
    """Return where the steps of a run are on scratch, which other runs may use too. Independent."""
    real = files.real_path(directory)
    digest = hashlib.sha256(os.fsencode(real)).hexdigest()[:12]
    return scratch / f"{os.path.basename(real) or 'run'}-{digest}"


def find_scratch(comm: Communicator, directory: Path, scratch: Path, files: FileSystem = POSIX) -> tuple[Path, NodeMap]:
    """Return the run's directory on scratch as this rank sees it, and which ranks see the same. Collective.

    Raises
    ------
    CollectiveError
        As `find_nodes` does, or, if others own the directory or can write it, `UnsafeDirectoryError`.
    """
    nodes = find_nodes(comm, scratch, files)

    def checked() -> Path:
        path = scratch_directory(directory, scratch, files)
        if nodes.leader_of(comm.rank) == comm.rank:
            check_private(path)
        return path

    found = comm.on_root("open scratch", checked) if nodes.is_shared else comm.agree("open scratch", checked)
    return found, nodes


def make_scratch(path: Path, files: FileSystem) -> None:
    """Make a run's directory on scratch for this user alone, durably, or check the one that exists. Independent.

    Its name can be predicted by all who may write beside it, and all steps that are not valid are removed from it.

    Raises
    ------
    UnsafeDirectoryError
        If others own it or can write it, or it is a symbolic link.
    """
    make_directory(path.parent, files)
    if make_private(path):
        files.fsync_dir(path.parent)


# -- which ranks see the same directory -----------------------------------------------------------


def find_nodes(comm: Communicator, scratch: Path, files: FileSystem = POSIX) -> NodeMap:
    """Return which ranks see the same scratch directory. Collective.

    Ranks are on one node if they see each other's marks there, whatever their hosts are called.

    Raises
    ------
    CollectiveError
        If ranks cannot make their directory, or see marks that contradict each other; names them.
    """
    mark = comm.on_root("open scratch", lambda: _leave_mark(scratch / f".seen-{layout.new_nonce()}", files))
    try:
        is_shared = comm.allreduce(files.exists(scratch / mark.name), operator.and_)
    finally:
        if comm.is_root:
            with contextlib.suppress(OSError):
                files.unlink(mark)
    return NodeMap(comm.size) if is_shared else _several_nodes(comm, scratch, mark.name, files)


def _several_nodes(comm: Communicator, scratch: Path, nonce: str, files: FileSystem) -> NodeMap:
    """Let each rank leave a mark in its scratch directory, and find those of other ranks there. Collective."""
    own = scratch / f"{nonce}-{comm.rank}"

    def seen() -> tuple[int, ...]:
        names = [name for name in files.names(scratch) if name.startswith(f"{nonce}-")]
        user = files.lstat(own).st_uid  # marks of another user are not a rank's
        ours = (name for name in names if files.lstat(scratch / name).st_uid == user)
        return tuple(sorted(int(name.rpartition("-")[2]) for name in ours))

    try:
        comm.agree("open scratch", lambda: _leave_mark(own, files))
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
    return NodeMap(comm.size, tuple(ranks[0] for ranks in seen_by))


def _leave_mark(path: Path, files: FileSystem) -> Path:
    """Make an empty file of a new name: a name that another user has taken is an error, not followed. Independent."""
    make_directory(path.parent, files)
    files.close(files.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
    return path


# -- which run directory it belongs to ------------------------------------------------------------


def owner_id_of(directory: Path, files: FileSystem = POSIX) -> str:
    """Return the identity of the run directory that a directory of either tier belongs to, or "". Independent.

    Raises
    ------
    HpcckptError
        If it cannot be read: it is unknown then, and what is on scratch may be the only copy.
    """
    with translated("read the owner of scratch"):
        try:
            return files.read_bounded(str(directory / OWNER_FILE), 64).decode("ascii", "replace")
        except (FileNotFoundError, NotADirectoryError):
            return ""
        except CorruptError as error:
            raise StorageError(
                f"{error}; the run directory and its directory on scratch have the same file: "
                "copy the good one over this one, or use the run without scratch"
            ) from error


def owner_id_on_scratch(path: Path, files: FileSystem = POSIX) -> str:
    """Return the same of a directory on scratch, which must be this user's alone. Independent.

    Raises
    ------
    UnsafeDirectoryError, HpcckptError
        As `make_scratch` and `owner_id_of` do.
    """
    with translated("open scratch"):
        check_private(path)
    return owner_id_of(path, files)


def write_owner_id(directory: Path, owner_id: str = "", files: FileSystem = POSIX) -> str:
    """Write the identity of a run directory, by default a new one, durably; return it. Root only, or each leader."""
    owner_id = owner_id or layout.new_nonce()
    draft = directory / f"{OWNER_FILE}-{layout.new_nonce()}"
    try:
        files.write_file(draft, owner_id.encode("ascii"), is_new=True, is_durable=True)
        files.rename(draft, directory / OWNER_FILE)
    finally:
        files.unlink(draft)
    files.fsync_dir(directory)
    return owner_id


def disown(directory: Path, files: FileSystem = POSIX) -> None:
    """Make all that is on scratch, wherever that is, invalid for a run directory. Root only."""
    with translated("disown scratch"):
        if files.unlink(directory / OWNER_FILE):
            files.fsync_dir(directory)


@contextlib.contextmanager
def translated(doing: str) -> Iterator[None]:
    """Turn system errors of the block into ours."""
    try:
        yield
    except OSError as error:
        raise error if isinstance(error, HpcckptError) else from_os_error(error, doing) from error
