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
    8  (root)  after 6, retention (:mod:`hpcckpt.retention`); what it did goes out with the outcome

Durable before visible: until 5 nobody sees the step, after 6 no power loss takes it away, and
nothing good is removed before.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hpcckpt import files, layout, native, phases
from hpcckpt.backends.base import Backend
from hpcckpt.collective.planner import SavePlan
from hpcckpt.discovery import read_manifest
from hpcckpt.errors import HpcckptError, NoSpaceError, StorageError
from hpcckpt.lock import RunLock
from hpcckpt.manifest import Manifest, encode
from hpcckpt.plan import SaveJob, Ticket, WriteReport

_log = logging.getLogger("hpcckpt")
RESERVE_BYTES = 1 << 20
_HEADER_BYTES_PER_TENSOR = 1024


@dataclass(frozen=True, slots=True)
class Staged:
    """A step in its staging directory: which save it is, where, and which rank publishes it."""

    job: SaveJob
    directory: Path
    name: str
    rank: int = 0

    @property
    def path(self) -> Path:
        """The staging directory."""
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
    problem : str
        What is wrong with the damaged one.
    """

    aside: tuple[int, ...] = ()
    there: Literal["", "good", "bad"] = ""
    problem: str = ""


CLEAR = Way()


def check_space(directory: Path, plan: SavePlan, n_ranks: int, staged_bytes: int = 0) -> None:
    """Refuse to begin what cannot be finished. Root only.

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

    Raises
    ------
    NoSpaceError
        Saying how much is needed and how much is free.
    """
    try:
        found = os.statvfs(directory)
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


def new_ticket() -> Ticket:
    """Return the name of a staging directory that is not made yet, and a new identity. Pure, but for the nonces."""
    return Ticket(layout.staging_dirname(layout.new_nonce()), secrets.token_hex(16))


def prepare(backend: Backend, path: Path, n_ranks: int, design: Any = None, reusable: Path | None = None) -> None:
    """Make the staging directory of a save to come, of a retired one if there is one. Root only."""
    if reusable is None:
        path.mkdir(exist_ok=True)  # step 1; the name has a nonce: if it exists, this call made it (NFS)
        backend.prepare(path, design)
    else:
        _remove_all_but_data(reusable)
        backend.reuse(reusable, n_ranks, design)
        files.rename(reusable, path)


def _remove_all_but_data(step: Path) -> None:
    """Remove what others have put into a step, or it would come back in a later one. Root only."""
    for entry in list(os.scandir(step)):
        if entry.is_dir(follow_symlinks=False):
            if entry.name != layout.DATA:
                files.remove_tree(entry.path)
        else:
            files.unlink(entry.path)


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
        raise StorageError(f"the step is not complete: {'; '.join(short)}; nothing was published, save again")


def publish(staged: Staged, manifest: Manifest, lock: RunLock | None, way: Way = CLEAR) -> Path:
    """Make a written step durable and visible. Root only."""
    publish_part(staged, manifest, lock, way)
    return staged.directory / layout.step_dirname(manifest.step)


def publish_part(staged: Staged, manifest: Manifest, lock: RunLock | None, way: Way = CLEAR) -> contextlib.ExitStack:
    """Do this where a rank has a step or its part, and return what gives all names back. Independent.

    Parameters
    ----------
    staged : Staged
        The step in its staging directory, all data durable.
    manifest : Manifest
        What it holds.
    lock : RunLock
        Ours; checked again.
    way : Way
        What stands where it will go.
    """
    if lock is None:
        raise AssertionError("a step is published only under the lock")
    lock.check()  # step 4
    phases.reached("4-check", staged.rank)
    _write_manifest(staged, manifest)
    native.fsync_dir(str(staged.path))
    phases.reached("4-durable", staged.rank)
    return _take_name(staged, staged.directory / layout.step_dirname(manifest.step), way)


def _take_name(staged: Staged, final: Path, way: Way) -> contextlib.ExitStack:
    """Give the step its name, and make that durable; if that fails, every name is as it was before."""

    def is_published() -> bool:
        return _has_save(final, staged.job.save_id)

    moves = _moves(staged.directory, final, way)
    with contextlib.ExitStack() as undo:
        for source, target in moves:
            files.rename(source, target)
            undo.callback(files.rename, target, source)
        if way.aside:
            native.fsync_dir(str(staged.directory))  # else a power loss may show the new step below the abandoned ones
        if way.there == "good":
            exchange(staged.path, final, is_published)  # step 5; the step that was replaced now has the other name
            undo.callback(exchange, final, staged.path)
        else:
            _rename_to_free_name(staged.path, final, is_published)  # step 5
            undo.callback(files.rename, final, staged.path)
        phases.reached("5-published", staged.rank)
        native.fsync_dir(str(staged.directory))  # step 6
        phases.reached("6-parent-synced", staged.rank)
        _report(moves, staged.job.step, way)
        return undo.pop_all()


def _has_save(path: Path, save_id: str) -> bool:
    """Return True if a step directory holds this save."""
    with contextlib.suppress(HpcckptError):
        return read_manifest(path).save_id == save_id
    return False


def move_aside(directory: Path, steps: Sequence[int], saved: int) -> None:
    """Give steps beyond the one that a run went back to, and saved, other names, newest first, durably. Root only."""
    moves = _moves(directory, directory, Way(tuple(sorted(steps, reverse=True))))
    for source, target in moves:
        files.rename(source, target)
    if steps:
        native.fsync_dir(str(directory))
    _report(moves, saved, CLEAR)


def _report(moves: Sequence[tuple[Path, Path]], saved: int, way: Way) -> None:
    """Log which directories take space from now on, why, and what removes them."""
    for source, target in moves:
        if layout.is_bad(target.name):
            why, option = f"it is damaged ({way.problem}) and was saved again", "--bad"
        else:
            why, option = f"the run went back to an older step and saved step {saved}", "--aside"
        _log.warning(
            "hpcckpt: %s is now %s: %s; 'hpcckpt prune %s %s' removes it",
            source, target.name, why, option, target.parent,
        )  # fmt: skip


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
        phases.reached("4-manifest", staged.rank)
        native.fsync(fd, where)
    finally:
        os.close(fd)


def _rename_to_free_name(source: Path, target: Path, is_done: Callable[[], bool]) -> None:
    """Rename a directory; refuses a name that is taken, even by an empty directory."""
    if os.path.lexists(target):
        raise StorageError(f"{target} appeared while the step was being written; nothing was published")
    files.rename(source, target, is_done)


def exchange(a: Path, b: Path, is_done: Callable[[], bool] | None = None) -> None:
    """Exchange two names. If a kill leaves `b` without its name, the next sweep gives it back. Root only."""
    files.exchange(a, b, a.with_name(layout.replaced_dirname(b.name, layout.new_nonce())), is_done)
