"""The copy of one step by all ranks: begin, copy, verify, publish."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

from hpcckpt import discovery, layout, phases
from hpcckpt.collective import commit
from hpcckpt.collective.communicator import Communicator
from hpcckpt.collective.planner import SavePlan
from hpcckpt.copying.pieces import Piece, Rules, copy_pieces, pieces_of, share, sync_files
from hpcckpt.copying.staging import open_staging, publish, staging_of
from hpcckpt.copying.verifying import problem_in, verify_files
from hpcckpt.errors import CorruptError, HpcckptError, OptionError, StepExistsError, StorageError, from_os_error
from hpcckpt.inspecting import Progress
from hpcckpt.journal import Journal
from hpcckpt.lock import RunLock
from hpcckpt.manifest import Manifest
from hpcckpt.plan import FileRecord, Index, StoredEntry
from hpcckpt.publishing import make_directory
from hpcckpt.streaming import held_step
from hpcckpt.workspace import Workspace

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Copied:
    """What became of one step.

    Attributes
    ----------
    step : int
        Its number.
    save_id : str
        Its identity, here as there.
    path : pathlib.Path
        Where it is now.
    nbytes : int
        Bytes of all its data files.
    written_nbytes : int
        How many of them had to be written.
    is_new : bool
        Whether it was not there before.
    seconds : float
        Time it took.
    """

    step: int
    save_id: str
    path: Path
    nbytes: int
    written_nbytes: int
    is_new: bool
    seconds: float


class _Task(NamedTuple):
    """What all ranks know of a copy; `staged` is ``None`` if the same save is there already."""

    manifest: Manifest
    entries: Index
    staged: commit.Staged | None
    is_resumed: bool = False


def _piece_nbytes(piece: Piece) -> int:
    return piece.nbytes


def copy_step(
    comm: Communicator, source: Path, destination: Path, rules: Rules | None = None, progress: Progress | None = None
) -> Copied:
    """Copy a step into another run directory. Collective.

    Parameters
    ----------
    comm : Communicator
        The ranks that share the work.
    source : path
        The step directory.
    destination : path
        The run directory; made if it is not there.
    rules : Rules, optional
        How.
    progress : callable, optional
        Called with the bytes of each part that was copied, and again when it was verified.

    Raises
    ------
    StepExistsError
        If another save of this number is there.
    LockedError
        If a job writes there.
    CorruptError
        If the source proves damaged; nothing is published then.
    """
    rules, began = rules or Rules(), time.monotonic()
    where = f"copy {source}"
    with _Held() as held:
        task = comm.on_root(where, _translated(lambda: _begin(held, source, destination, rules)))  # step 1
        if task.staged is None and rules.is_replacing and _is_rotten(comm, source, destination, task, rules, progress):
            task = comm.on_root(where, _translated(lambda: _begin_anew(held, destination, task)))
        manifest, staged, n_written = task.manifest, task.staged, 0
        if staged is not None:
            pieces = share(pieces_of(manifest.files), comm.rank, comm.size, _piece_nbytes)
            copying = _translated(lambda: copy_pieces(source, staged.path, pieces, rules, task.is_resumed, progress))
            n_written = sum(comm.allgather(comm.agree(where, copying)))  # step 2
            comm.agree(f"{where}: sync", _translated(lambda: sync_files(staged.path, {p.path for p in pieces})))
            _verify_all(comm, held, source, task, rules, progress)  # step 3
            comm.on_root(f"{where}: publish", _translated(lambda: _publish(held, source, manifest, staged)))  # step 4
    path = destination / layout.step_dirname(manifest.step)
    seconds = time.monotonic() - began
    return Copied(manifest.step, manifest.save_id, path, manifest.nbytes, n_written, staged is not None, seconds)


def _translated(fn: Callable[[], T]) -> Callable[[], T]:
    """Return a function whose system errors say what was being done."""

    def call() -> T:
        try:
            return fn()
        except OSError as error:
            raise error if isinstance(error, HpcckptError) else from_os_error(error, "copy") from error

    return call


def planned(source: Path, destination: Path, *, is_replacing: bool = False) -> bool:
    """Say whether a step would be copied, changing nothing; raise what would keep it from that. Independent.

    Raises
    ------
    StepExistsError
        If another save of this number is there.
    """
    manifest = discovery.read_manifest(source)
    discovery.check_files(source, manifest)
    return _way(manifest, destination, is_replacing=is_replacing) is not None


class _Held(ExitStack):
    """What root holds until the copy has ended: the lock of the destination and the step; and what stands there."""

    lock: RunLock
    workspace: Workspace
    way: commit.Way | None


def _begin(held: _Held, source: Path, destination: Path, rules: Rules) -> _Task:
    """Hold the source and lock the destination, as long as `held` is open; make the directory. Root only."""
    if os.path.realpath(source.parent) == os.path.realpath(destination):
        raise OptionError(f"{destination} is where the step is already; give another run directory")
    make_directory(destination)
    held.lock = held.enter_context(RunLock.take(destination))
    held.workspace = Workspace.at(destination)
    held.callback(held.workspace.release_all, held)
    reader = held.enter_context(held_step(source, rules.jobs))
    held.way = _way(reader.manifest, destination, is_replacing=rules.is_replacing)
    if held.way is None:
        return _Task(reader.manifest, reader.index if rules.is_replacing else {}, None)
    return _staged(held, destination, reader.manifest, reader.index)


def _staged(held: _Held, destination: Path, manifest: Manifest, entries: Index) -> _Task:
    """Make the directory that the copy is brought together in, if there is space for it. Root only."""
    staged = staging_of(destination, manifest)
    held.workspace.reserve(staged.name, held)
    is_resumed = open_staging(staged.path, manifest.files)
    there = sum(512 * path.lstat().st_blocks for path in staged.path.rglob("*"))
    need = SavePlan((), manifest.tensors, manifest.nbytes, ())
    held.workspace.check_space(need, 1, min(there, manifest.nbytes))
    phases.reached("copy-begun", 0)
    return _Task(manifest, entries, staged, is_resumed)


def _is_rotten(
    comm: Communicator, source: Path, destination: Path, task: _Task, rules: Rules, progress: Progress | None
) -> bool:
    """Say whether bytes of the save that is there already are not those that were saved. Collective."""
    path = destination / layout.step_dirname(task.manifest.step)

    def look() -> bool:
        try:
            return bool(problem_in(path, task.manifest, *_shares(comm, task), rules, progress))
        except OSError:  # a sector that cannot be read does not give them back either
            return True

    return any(comm.allgather(comm.agree(f"copy {source}: verify what is there", look)))


def _begin_anew(held: _Held, destination: Path, task: _Task) -> _Task:
    """Copy what is there already but rotten: that one is kept aside, as evidence. Root only."""
    held.way = commit.Way(there="bad")
    return _staged(held, destination, task.manifest, task.entries)


def _way(manifest: Manifest, destination: Path, *, is_replacing: bool) -> commit.Way | None:
    """Say what stands where the step will go; ``None`` if this save is there already. Root only."""
    if manifest.step not in discovery.step_numbers(destination):
        return commit.CLEAR
    found = discovery.inspect_step(destination, manifest.step)
    if found.is_unread:
        raise StorageError(found.problem)
    if found.manifest is None or not found.is_restorable:
        return commit.Way(there="bad")
    if found.manifest.save_id == manifest.save_id:
        return None
    if is_replacing:
        return commit.Way(there="good")
    raise StepExistsError(
        f"step {manifest.step} of {destination} is another save ({found.manifest.save_id}, this one is "
        f"{manifest.save_id}); choose another directory, or pass --overwrite to replace it"
    )


def _verify_all(
    comm: Communicator, held: _Held, source: Path, task: _Task, rules: Rules, progress: Progress | None
) -> None:
    """Read the copy back; one of a damaged step goes, for no other attempt will make it whole. Collective."""
    try:
        comm.agree(f"copy {source}: verify", _translated(lambda: _verify(comm, source, task, rules, progress)))
    except CorruptError:
        if comm.is_root and task.staged is not None:
            held.workspace.abandon(task.staged)
        raise


def _verify(comm: Communicator, source: Path, task: _Task, rules: Rules, progress: Progress | None) -> None:
    """Read this rank's share of the copy back. Independent."""
    assert task.staged is not None
    verify_files(source, task.staged.path, task.manifest, *_shares(comm, task), rules, progress)


def _shares(comm: Communicator, task: _Task) -> tuple[Sequence[FileRecord], list[StoredEntry]]:
    """Return the files whose headers this rank looks at, and the entries whose bytes. Independent."""
    entries = sorted(
        (e for found in task.entries.values() for e in found), key=lambda entry: (entry.file, entry.offset)
    )
    files = task.manifest.files if comm.is_root else ()  # one look at the headers is enough
    return files, share(entries, comm.rank, comm.size, _entry_nbytes)


def _entry_nbytes(entry: StoredEntry) -> int:
    return entry.nbytes


def _publish(held: _Held, source: Path, manifest: Manifest, staged: commit.Staged) -> None:
    """Give the copy its name, and tell the journal there; what it replaces goes. Root only."""
    assert held.way is not None
    publish(staged, manifest, held.lock, held.way)
    Journal(staged.directory, by="copy", guard=Workspace.at(staged.directory).noting).copied(
        manifest.step, manifest.save_id, manifest.nbytes, source
    )
