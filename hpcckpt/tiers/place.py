"""Where scratch is, who sees it, and which run directory it belongs to."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from hpcckpt import discovery, layout, native, publishing
from hpcckpt.collective.communicator import Communicator
from hpcckpt.errors import HpcckptError, OptionError, from_os_error

MARK = ".tier"


def scratch_directory(directory: Path, scratch: Path) -> Path:
    """Return where the steps of a run stand on scratch, which other runs may use too. Pure."""
    real = os.path.realpath(directory)
    return scratch / f"{os.path.basename(real) or 'run'}-{hashlib.sha256(real.encode()).hexdigest()[:12]}"


def check_place(comm: Communicator, scratch: Path) -> None:
    """Check that all ranks see the same scratch directory. Collective.

    Raises
    ------
    OptionError
        Naming the ranks that do not.
    """

    def leave_mark() -> Path:
        path = scratch / f".seen-{layout.new_nonce()}"
        try:
            publishing.make_directory(scratch)
            path.touch()
        except OSError as error:
            raise error if isinstance(error, HpcckptError) else from_os_error(error, "open scratch") from error
        return path

    mark = comm.on_root("open scratch", leave_mark)
    try:
        blind = [rank for rank, sees in enumerate(comm.allgather((scratch / mark.name).exists())) if not sees]
    finally:
        if comm.is_root:
            with contextlib.suppress(OSError):
                mark.unlink()
    if blind:
        shown = ", ".join(map(str, blind[:8])) + (" and more" if len(blind) > 8 else "")
        raise OptionError(
            f"options.scratch: rank {shown} does not see what rank 0 writes to {mark.parent}; scratch has to be one "
            "directory that all ranks see: the disk of the node of a job on one node, or a burst buffer. Give that, "
            "or leave scratch out: disks of several nodes together are not supported"
        )


def mark_of(directory: Path) -> str:
    """Return what says which run directory a scratch directory belongs to; "" if nothing. Root only."""
    try:
        return discovery.read_bounded(str(directory / MARK), 64).decode("ascii", "replace")
    except (OSError, HpcckptError):
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
        os.rename(draft, directory / MARK)
    finally:
        draft.unlink(missing_ok=True)
    native.fsync_dir(str(directory))
    return mark


@contextlib.contextmanager
def translated(doing: str) -> Iterator[None]:
    """Turn system errors of the block into ours."""
    try:
        yield
    except OSError as error:
        raise error if isinstance(error, HpcckptError) else from_os_error(error, doing) from error
