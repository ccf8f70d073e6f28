"""The copy of one step by all ranks: begin, copy, verify, commit."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

from hpcckpt.collective.communicator import Communicator
from hpcckpt.collective.planner import SavePlan
from hpcckpt.core import failpoints
from hpcckpt.core.plan import FileRecord, Index, StoredEntry
from hpcckpt.core.results import Progress
from hpcckpt.core.system import OperatingSystem
from hpcckpt.errors import CorruptError, HpcckptError, OptionError, StepExistsError, StorageError, from_os_error
from hpcckpt.format import layout
from hpcckpt.format.manifest import Manifest
from hpcckpt.native.posix_files import POSIX, REAL
from hpcckpt.restoring.segments import held_step
from hpcckpt.rundir import commit, discovery, pins
from hpcckpt.rundir.journal import Journal
from hpcckpt.rundir.lock import RunLock
from hpcckpt.rundir.run_directory import make_directory
from hpcckpt.rundir.workspace import Workspace
from hpcckpt.tiers.copy.file_segments import Piece, Rules, copy_pieces, pieces_of, share, sync_files
from hpcckpt.tiers.copy.staging import commit_staged, open_staging, staging_of
from hpcckpt.tiers.copy.verify import problem_in, verify_files

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
        If the source proves damaged; nothing is committed then.
    """
    rules = rules or Rules()
    clock, files = rules.system.clock, rules.system.files
    began = clock.monotonic()
    where = f"copy {source}"
    with _Resources() as resources:
        task = comm.on_root(where, _translated(lambda: _begin(resources, source, destination, rules)))  # step 1
        if task.staged is None and rules.is_replacing and _is_rotten(comm, source, destination, task, rules, progress):
            task = comm.on_root(where, _translated(lambda: _begin_again(resources, destination, task, rules)))
        manifest, staged, n_written = task.manifest, task.staged, 0
        if staged is not None:
            pieces = share(pieces_of(manifest.files), comm.rank, comm.size, _piece_nbytes)
            copying = _translated(lambda: copy_pieces(source, staged.path, pieces, rules, task.is_resumed, progress))
            n_written = comm.allreduce(comm.agree(where, copying), operator.add)  # step 2
            comm.agree(f"{where}: sync", _translated(lambda: sync_files(staged.path, {p.path for p in pieces}, files)))
            _verify_all(comm, resources, source, task, rules, progress)  # step 3
            comm.on_root(
                f"{where}: commit", _translated(lambda: _commit(resources, source, manifest, staged, rules))
            )  # step 4
    path = destination / layout.step_dirname(manifest.step)
    seconds = clock.monotonic() - began
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
    """Return True if a step would be copied, changing nothing; raise what would prevent it. Independent.

    Raises
    ------
    StepExistsError
        If another save of this number is there.
    """
    manifest = discovery.read_manifest(source, POSIX)
    discovery.check_files(source, manifest, POSIX)
    return _conflicts(manifest, destination, REAL, is_replacing=is_replacing) is not None


class _Resources(ExitStack):
    """What root holds until the copy has ended: the lock of the destination, the step, what it replaces."""

    lock: RunLock
    workspace: Workspace
    conflicts: commit.Conflicts | None


def _begin(resources: _Resources, source: Path, destination: Path, rules: Rules) -> _Task:
    """Hold the source and lock the destination, as long as `resources` is open; make the directory. Root only."""
    system, files = rules.system, rules.system.files
    if files.real_path(source.parent) == files.real_path(destination):
        raise OptionError(f"{destination} is where the step is already; give another run directory")
    make_directory(destination, files)
    resources.lock = resources.enter_context(RunLock.take(destination, system=system))
    resources.workspace = Workspace.at(destination, system)
    resources.callback(resources.workspace.release_all, resources)
    reader = resources.enter_context(held_step(source, rules.jobs))
    resources.conflicts = _conflicts(reader.manifest, destination, system, is_replacing=rules.is_replacing)
    if resources.conflicts is None:
        return _Task(reader.manifest, reader.index if rules.is_replacing else {}, None)
    return _staged(resources, destination, reader.manifest, reader.index, rules)


def _staged(resources: _Resources, destination: Path, manifest: Manifest, entries: Index, rules: Rules) -> _Task:
    """Make the staging directory of the copy, if there is space for it. Root only."""
    staged = staging_of(destination, manifest)
    resources.workspace.reserve(staged.name, resources)
    files = rules.system.files
    is_resumed = open_staging(staged.path, manifest.files, files)
    there = sum(512 * found.st_blocks for found in files.tree(staged.path))
    need = SavePlan((), manifest.tensors, manifest.nbytes, ())
    resources.workspace.check_space(need, 1, min(there, manifest.nbytes))
    failpoints.reached("copy-begun", 0)
    return _Task(manifest, entries, staged, is_resumed)


def _is_rotten(
    comm: Communicator, source: Path, destination: Path, task: _Task, rules: Rules, progress: Progress | None
) -> bool:
    """Return True if bytes of the save that is there already are not those that were saved. Collective."""
    path = destination / layout.step_dirname(task.manifest.step)

    def look() -> bool:
        try:
            return bool(problem_in(path, task.manifest, *_shares(comm, task), rules, progress))
        except OSError:  # a sector that cannot be read does not give them back either
            return True

    return comm.allreduce(comm.agree(f"copy {source}: verify what is there", look), operator.or_)


def _begin_again(resources: _Resources, destination: Path, task: _Task, rules: Rules) -> _Task:
    """Copy what is there already but rotten: that one is kept aside, as evidence. Root only."""
    resources.conflicts = commit.Conflicts(existing="bad")
    return _staged(resources, destination, task.manifest, task.entries, rules)


def _conflicts(
    manifest: Manifest, destination: Path, system: OperatingSystem, *, is_replacing: bool
) -> commit.Conflicts | None:
    """Return which step the copy replaces; ``None`` if this save is there already. Root only."""
    files = system.files
    if manifest.step not in discovery.step_numbers(destination, files):
        return commit.NO_CONFLICTS
    found = discovery.inspect_step(destination, manifest.step, files=files)
    if found.is_unread:
        raise StorageError(found.problem)
    if found.manifest is None or not found.is_restorable:
        return commit.Conflicts(existing="bad")
    if found.manifest.save_id == manifest.save_id:
        return None
    if is_replacing:
        pins.refuse_pinned(destination, [manifest.step], system=system)
        return commit.Conflicts(existing="good")
    raise StepExistsError(
        f"step {manifest.step} of {destination} is another save ({found.manifest.save_id}, this one is "
        f"{manifest.save_id}); choose another directory, or pass --overwrite to replace it"
    )


def _verify_all(
    comm: Communicator, resources: _Resources, source: Path, task: _Task, rules: Rules, progress: Progress | None
) -> None:
    """Read the copy back; one of a damaged step goes, for no other attempt will make it whole. Collective."""
    try:
        comm.agree(f"copy {source}: verify", _translated(lambda: _verify(comm, source, task, rules, progress)))
    except CorruptError:
        if comm.is_root and task.staged is not None:
            resources.workspace.abort(task.staged)
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


def _commit(resources: _Resources, source: Path, manifest: Manifest, staged: commit.Staged, rules: Rules) -> None:
    """Commit the copy, and record it in the journal there; what it replaces is removed. Root only."""
    assert resources.conflicts is not None
    commit_staged(staged, manifest, resources.lock, resources.conflicts, rules.system)
    Journal(staged.directory, by="copy", system=rules.system).copied(
        manifest.step, manifest.save_id, manifest.nbytes, source
    )
