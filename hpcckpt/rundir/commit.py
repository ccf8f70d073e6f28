"""The commit protocol: a checkpoint is whole or absent.

    1  (root)  make the staging directory ``.next-<nonce>``; its name goes to all ranks, with the outcome of
               the save before, or at the first save
    2  (each)  write, sync the files and every directory in which an entry was created
    3  (all)   the reports reach root; a rank that failed reports its error
    4  (root)  check that everything was written, let the backend complete it, and check that the lock is
               still ours; write and sync the manifest and the directory
    5  (root)  rename the directory into place
    6  (root)  sync the parent directory
    7  (all)   the outcome reaches every rank
    8  (root)  after 6, retention (:mod:`hpcckpt.rundir.retention`); what it did goes out with the outcome

Durable before visible: until 5 the step is not visible, after 6 a power loss does not remove it, and
nothing good is removed before.  If 5 or 6 fails, every name is given back (:mod:`hpcckpt.rundir.renames`).
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import secrets
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hpcckpt import native
from hpcckpt.backends.base import Backend
from hpcckpt.collective.planner import SavePlan
from hpcckpt.core import failpoints
from hpcckpt.core.plan import SaveJob, StagingSlot, WriteReport
from hpcckpt.core.system import FileSystem
from hpcckpt.errors import NoSpaceError, StorageError
from hpcckpt.format import layout
from hpcckpt.format.manifest import Manifest, encode
from hpcckpt.native.posix_files import POSIX
from hpcckpt.rundir import pins
from hpcckpt.rundir.renames import Renames

_log = logging.getLogger("hpcckpt")
RESERVE_BYTES = 1 << 20
_HEADER_BYTES_PER_TENSOR = 1024


@dataclass(frozen=True, slots=True)
class Staged:
    """A step in its staging directory: which save it is, where, and which rank commits it."""

    job: SaveJob
    directory: Path
    name: str
    rank: int = 0

    @property
    def path(self) -> Path:
        """The staging directory."""
        return self.directory / self.name


@dataclass(frozen=True, slots=True)
class Conflicts:
    """What exists where a step will go, and is moved when the new one is durable.

    Attributes
    ----------
    aside : tuple of int
        Steps to move aside: the run continues from an older one.
    existing : {"", "good", "bad"}
        The step of the same number: none, one to exchange, or a damaged one to keep as evidence.
    problem : str
        What is wrong with the damaged one.
    is_scratch : bool
        Whether steps are pinned until they are drained, which prevents nothing.
    """

    aside: tuple[int, ...] = ()
    existing: Literal["", "good", "bad"] = ""
    problem: str = ""
    is_scratch: bool = False


NO_CONFLICTS = Conflicts()


def check_space(
    directory: Path, plan: SavePlan, n_ranks: int, staged_bytes: int = 0, files: FileSystem = POSIX
) -> None:
    """Raise if there is too little space for a save. Root only.

    Parameters
    ----------
    directory : pathlib.Path
        The run directory.
    plan : SavePlan
        What will be written.
    n_ranks : int
        By how many ranks.
    staged_bytes : int
        What the files that are used again have already.
    files : FileSystem
        Where the directory is.

    Raises
    ------
    NoSpaceError
        With how much is needed and how much is free.
    """
    try:
        found = files.free_space(directory)
    except OSError as error:  # only a precaution: what is really full is reported when it is written
        _log_unknown_space(directory, error.strerror)
        return
    free = found.f_bavail * found.f_frsize
    needed = plan.nbytes + _HEADER_BYTES_PER_TENSOR * (len(plan.tensors) + n_ranks) + RESERVE_BYTES - staged_bytes
    if found.f_blocks and needed > free:
        raise NoSpaceError(
            f"{directory}: this step needs {needed} bytes, {free} are free; "
            "nothing was written or removed: free space, keep fewer steps, or choose another directory",
        )


@functools.cache
def _log_unknown_space(directory: Path, reason: str) -> None:
    """Log, once for each directory, that free space is not checked there."""
    _log.warning("hpcckpt: %s: free space is unknown (statvfs: %s); saves begin without that check", directory, reason)


def new_slot() -> StagingSlot:
    """Return the name of a staging directory that is not made yet, and a new identity. Pure, but for the nonces."""
    return StagingSlot(layout.staging_dirname(layout.new_nonce()), secrets.token_hex(16))


def prepare(
    backend: Backend,
    path: Path,
    n_ranks: int,
    file_layout: Any = None,
    reusable: Path | None = None,
    files: FileSystem = POSIX,
) -> None:
    """Make the staging directory of a save to come, of a retired one if there is one. Root only."""
    if reusable is None:
        files.mkdir(path)  # step 1; the name has a nonce: if it exists, this call made it (NFS)
        backend.prepare(path, file_layout)
    else:
        _remove_all_but_data(reusable, files)
        backend.reuse(reusable, n_ranks, file_layout)
        files.rename(reusable, path)


def _remove_all_but_data(step: Path, files: FileSystem) -> None:
    """Remove what others have put into a step, or it would come back in a later one. Root only."""
    for name in files.names(step):
        if not stat.S_ISDIR(files.lstat(step / name).st_mode):
            files.unlink(step / name)
        elif name != layout.DATA:
            files.remove_tree(step / name)


def check_coverage(plan: SavePlan, reports: Sequence[WriteReport]) -> None:
    """Check that every rank wrote what it was to write. Pure.

    Raises
    ------
    StorageError
        Naming the ranks that did not.
    """
    short = [
        f"rank {rank} wrote {report.shared_nbytes} of {planned} bytes"
        for rank, (report, planned) in enumerate(zip(reports, plan.shared_nbytes_of, strict=True))
        if report.shared_nbytes != planned
    ]
    if short:
        raise StorageError(f"the step is not complete: {'; '.join(short)}; nothing was committed, save again")


def commit_step(staged: Staged, manifest: Manifest, renames: Renames, conflicts: Conflicts = NO_CONFLICTS) -> Path:
    """Make a written step, or a node's part of one, durable and visible; return where it is. Root only.

    Parameters
    ----------
    staged : Staged
        The step in its staging directory, all data durable.
    manifest : Manifest
        What it holds.
    renames : Renames
        Of `Workspace.renaming`, which undoes them if this fails.
    conflicts : Conflicts
        What exists where it will go.
    """
    files = renames.lock.system.files
    renames.lock.check()  # step 4
    failpoints.reached("4-check", staged.rank)
    _write_manifest(staged, manifest, files)
    files.fsync_dir(staged.path)
    failpoints.reached("4-durable", staged.rank)
    final = staged.directory / layout.step_dirname(manifest.step)
    _rename_to_step(staged, final, conflicts, renames)
    return final


def _rename_to_step(staged: Staged, final: Path, conflicts: Conflicts, renames: Renames) -> None:
    """Rename a staging directory to its step, durably.

    A pin is set before its user checks that the step is there, so after a rename one of the two notices the other.
    """
    system, directory, save_id = renames.lock.system, staged.directory, staged.job.save_id
    moves = _moves(directory, final, conflicts)
    is_pin_obeyed = not conflicts.is_scratch
    for source, target in moves:
        renames.move(source, target)
    if is_pin_obeyed:
        pins.refuse_pinned(directory, _aside(moves), _aside(moves), system)
    if conflicts.aside:
        system.files.fsync_dir(directory)  # else a power loss may show the new step below those moved aside
    if conflicts.existing == "good":
        renames.exchange(staged.path, final, save_id)  # step 5; the replaced step now has the other name
        if is_pin_obeyed:
            pins.refuse_pinned(directory, [staged.job.step], {staged.job.step: staged.path}, system)
    else:
        pinnable = staged.job.step if is_pin_obeyed and not conflicts.existing else None
        renames.to_step(staged.path, final, save_id, pinnable)  # step 5
    failpoints.reached("5-published", staged.rank)
    system.files.fsync_dir(directory)  # step 6
    failpoints.reached("6-parent-synced", staged.rank)
    _report(moves, staged.job.step, conflicts)


@contextlib.contextmanager
def moved_aside(renames: Renames, steps: Sequence[int], saved: int) -> Iterator[None]:
    """Rename steps beyond the one that a run went back to, newest first, durably. Root only.

    The block commits, in another directory, the step that was saved.
    """
    directory, system = renames.directory, renames.lock.system
    moves = _moves(directory, directory, Conflicts(tuple(sorted(steps, reverse=True))))
    for source, target in moves:
        renames.move(source, target)
    pins.refuse_pinned(directory, steps, _aside(moves), system)
    system.files.fsync_dir(directory)
    yield
    _report(moves, saved, NO_CONFLICTS)


def _report(moves: Sequence[tuple[Path, Path]], saved: int, conflicts: Conflicts) -> None:
    """Log which directories take space from now on, why, and what removes them."""
    for source, target in moves:
        if layout.is_bad(target.name):
            problem = f" ({conflicts.problem})" if conflicts.problem else ""
            why, option = f"it is damaged{problem} and was replaced", "--bad"
        else:
            why, option = f"the run went back to an older step and saved step {saved}", "--aside"
        _log.warning(
            "hpcckpt: %s is now %s: %s; 'hpcckpt prune %s %s' removes it",
            source, target.name, why, option, target.parent,
        )  # fmt: skip


def _moves(directory: Path, final: Path, conflicts: Conflicts) -> list[tuple[Path, Path]]:
    """Return the renames that make room for a step. Pure, but for the nonces."""
    moves = [
        (directory / layout.step_dirname(step), directory / layout.aside_dirname(step, layout.new_nonce()))
        for step in conflicts.aside
    ]
    if conflicts.existing == "bad":
        moves.append((final, directory / layout.bad_dirname(layout.new_nonce())))
    return moves


def _aside(moves: Sequence[tuple[Path, Path]]) -> dict[int, Path]:
    """Return where the steps are that were moved aside. Pure."""
    return {
        step: target
        for source, target in moves
        if layout.is_aside(target.name) and (step := layout.parse_step(source.name)) is not None
    }


def _write_manifest(staged: Staged, manifest: Manifest, files: FileSystem) -> None:
    text = encode(manifest, native.crc32c)
    where = str(staged.path / layout.MANIFEST)
    fd = files.open(where, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        files.write_blocks(fd, [(text, 0)], path=where)
        failpoints.reached("4-manifest", staged.rank)
        files.fsync(fd, where)
    finally:
        files.close(fd)
