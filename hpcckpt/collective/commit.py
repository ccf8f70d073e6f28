"""The commit protocol: a checkpoint is whole or absent.

    1  (root)  make the temporary directory ``.step-N.tmp-<nonce>``
    2  (each)  write, sync the files and every directory in which an entry was created
    3  (all)   reduce the reports; a rank that failed takes part, carrying its error
    4  (root)  check that everything was written and that the lock is still ours; write and sync the
               manifest and the directory
    5  (root)  rename the directory into place
    6  (root)  sync the parent directory
    7  (all)   the outcome reaches every rank
    8  (root)  only then retention (:mod:`hpcckpt.retention`)

Durable before visible: until 5 nobody sees the step, after 6 no power loss takes it away, and
nothing good is removed before 8.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hpcckpt import layout, native, phases
from hpcckpt.backends.base import Backend, Payload
from hpcckpt.collective.communicator import Communicator
from hpcckpt.collective.planner import SavePlan
from hpcckpt.discovery import read_manifest
from hpcckpt.errors import HpcckptError, NoSpaceError, StorageError
from hpcckpt.lock import RunLock
from hpcckpt.manifest import Manifest, encode
from hpcckpt.plan import FileRecord, SaveJob, WriteReport

RESERVE_BYTES = 1 << 20
_HEADER_BYTES_PER_TENSOR = 1024


@dataclass(frozen=True, slots=True)
class Staged:
    """A step in its temporary directory: which save it is, and where."""

    job: SaveJob
    directory: Path
    name: str

    @property
    def path(self) -> Path:
        """The temporary directory."""
        return self.directory / self.name


@dataclass(frozen=True, slots=True)
class Way:
    """What stands where a step will go, and is dealt with when the new one is durable.

    Attributes
    ----------
    aside : tuple of int
        Steps to move aside, for the run goes on from an older one.
    there : {"", "good", "bad"}
        The step of the same number: none, one to exchange, or a damaged one to keep as evidence.
    """

    aside: tuple[int, ...] = ()
    there: Literal["", "good", "bad"] = ""


CLEAR = Way()


def check_space(directory: Path, plan: SavePlan, n_ranks: int) -> None:
    """Refuse to begin what cannot be finished. Root only.

    Raises
    ------
    NoSpaceError
        Saying how much is needed and how much is free.
    """
    found = os.statvfs(directory)
    free = found.f_bavail * found.f_frsize
    needed = plan.nbytes + _HEADER_BYTES_PER_TENSOR * (len(plan.tensors) + n_ranks) + RESERVE_BYTES
    if found.f_blocks and needed > free:
        raise NoSpaceError(
            f"{directory}: this step needs {needed} bytes, {free} are free; "
            "nothing was written or removed: free space, keep fewer steps, or choose another directory",
        )


def begin(backend: Backend, job: SaveJob, directory: Path) -> Staged:
    """Make the temporary directory of a step. Root only."""
    staged = Staged(job, directory, layout.temporary_dirname(job.step, layout.new_nonce()))
    phases.reached("1-begin", 0)
    staged.path.mkdir()  # step 1
    backend.prepare(job, staged.path)
    return staged


def write(
    comm: Communicator, backend: Backend, staged: Staged, payloads: Callable[[], Sequence[Payload]]
) -> list[WriteReport] | None:
    """Write every rank's payloads and bring the reports to root. Collective.

    Parameters
    ----------
    comm : Communicator
        The ranks that save.
    backend : Backend
        Writes them.
    staged : Staged
        The step in its temporary directory.
    payloads : callable
        Returns this rank's payloads; it may fail like the writing itself, so it is called where all ranks hear of it.

    Raises
    ------
    CollectiveError
        If any rank failed, alike on every rank.
    """

    def write_own() -> WriteReport:
        phases.reached("2-write", comm.rank)
        report = backend.write(staged.job, staged.path, comm.rank, payloads())  # step 2
        phases.reached("3-report", comm.rank)
        return report

    return comm.reduce_on_root(f"save step {staged.job.step}: write", write_own)  # step 3


def check_coverage(plan: SavePlan, reports: Sequence[WriteReport]) -> tuple[FileRecord, ...]:
    """Check that every rank wrote what it was to write; return all files. Root only.

    Raises
    ------
    StorageError
        Naming the ranks that did not.
    """
    short = [
        f"rank {rank} wrote {report.nbytes} of {planned} bytes"
        for rank, (report, planned) in enumerate(zip(reports, plan.nbytes_of, strict=True))
        if report.nbytes != planned
    ]
    if short:
        raise StorageError(f"the step is not complete: {'; '.join(short)}; nothing was published, save again")
    files = {record.path: record for report in reports for record in report.files}
    return tuple(files[path] for path in sorted(files))


def publish(staged: Staged, manifest: Manifest, lock: RunLock | None, way: Way = CLEAR) -> Path:
    """Make a written step durable and visible. Root only.

    Parameters
    ----------
    staged : Staged
        The step in its temporary directory, all data durable.
    manifest : Manifest
        What it holds.
    lock : RunLock
        Ours; checked again.
    way : Way
        What stands where it will go.
    """
    if lock is None:
        raise AssertionError("root publishes only under the lock")
    lock.check()  # step 4
    phases.reached("4-check", 0)
    _write_manifest(staged, manifest)
    native.fsync_dir(str(staged.path))
    phases.reached("4-durable", 0)
    final = staged.directory / layout.step_dirname(manifest.step)
    _take_name(staged, final, way)
    return final


def _take_name(staged: Staged, final: Path, way: Way) -> None:
    """Give the step its name, and make that durable; if that fails, every name is as it was before."""
    with contextlib.ExitStack() as undo:
        for source, target in _moves(staged.directory, final, way):
            os.rename(source, target)
            undo.callback(os.rename, target, source)
        if way.aside:
            native.fsync_dir(str(staged.directory))  # else a power loss may show the new step below the abandoned ones
        rename = exchange if way.there == "good" else _rename_to_free_name
        rename(staged.path, final)  # step 5; a step that was replaced now has a name that is swept
        undo.callback(rename, final, staged.path)
        phases.reached("5-published", 0)
        native.fsync_dir(str(staged.directory))  # step 6
        phases.reached("6-parent-synced", 0)
        undo.pop_all()


def _moves(directory: Path, final: Path, way: Way) -> list[tuple[Path, Path]]:
    """Return the renames that clear the way. Pure, but for the nonces."""
    moves = [
        (directory / layout.step_dirname(step), directory / layout.aside_dirname(step, layout.new_nonce()))
        for step in way.aside
    ]
    if way.there == "bad":
        moves.append((final, directory / layout.bad_dirname(layout.new_nonce())))
    return moves


def _write_manifest(staged: Staged, manifest: Manifest) -> None:
    text = encode(manifest, native.crc32c)
    where = str(staged.path / layout.MANIFEST)
    fd = os.open(where, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    try:
        native.write_blocks(fd, [(text, 0)], path=where)
        phases.reached("4-manifest", 0)
        native.fsync(fd, where)
    finally:
        os.close(fd)


def _rename_to_free_name(source: Path, target: Path) -> None:
    """Rename a directory; refuses a name that is taken, even by an empty directory."""
    if os.path.lexists(target):
        raise StorageError(f"{target} appeared while the step was being written; nothing was published")
    os.rename(source, target)


RENAME_EXCHANGE = 2
_AT_FDCWD = -100


def exchange(a: Path, b: Path) -> None:
    """Exchange two names atomically, or, where the file system cannot, in two renames. Root only."""
    libc = ctypes.CDLL(None, use_errno=True)
    if hasattr(libc, "renameat2"):
        done = libc.renameat2(_AT_FDCWD, os.fsencode(a), _AT_FDCWD, os.fsencode(b), RENAME_EXCHANGE)
        if done == 0:
            return
        code = ctypes.get_errno()
        if code not in {errno.EINVAL, errno.ENOSYS, errno.ENOTSUP}:
            raise OSError(code, os.strerror(code), os.fspath(b))
    # Killed between these renames, b's name is free and b waits: the next sweep gives it back.
    kept = a.with_name(layout.replaced_dirname(b.name, layout.new_nonce()))
    os.rename(b, kept)
    try:
        os.rename(a, b)
    except OSError:
        os.rename(kept, b)
        raise
    os.rename(kept, a)


def abandon(staged: Staged) -> None:
    """Remove what a failed save left; what cannot be removed is swept later. Root only."""
    with contextlib.suppress(HpcckptError):
        if read_manifest(staged.path).save_id != staged.job.save_id:
            return  # the step that was to be replaced, if not even its name could be given back
    shutil.rmtree(staged.path, ignore_errors=True)
