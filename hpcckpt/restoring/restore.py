"""How a step is restored, from directory to state: select, open, match, read, assign.

Every rank checks the bytes it reads against the same checksums, so replicas that were restored are equal.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from hpcckpt.collective.communicator import Communicator
from hpcckpt.collective.thread_tasks import Task
from hpcckpt.collective.waits import wait_until
from hpcckpt.core import failpoints
from hpcckpt.core.command_lines import command_line
from hpcckpt.core.dtypes import numpy_dtype
from hpcckpt.core.plan import Index
from hpcckpt.core.results import Restored
from hpcckpt.core.tensors import Extent
from hpcckpt.errors import (
    CollectiveError,
    CorruptError,
    HpcckptError,
    ManifestError,
    NoSpaceError,
    OlderStepError,
    RetiredError,
    RetryError,
    StateMismatchError,
    StepNotFoundError,
    StorageError,
    UnprovenDamageError,
    error_of,
)
from hpcckpt.format import layout
from hpcckpt.format.manifest import Manifest
from hpcckpt.restoring.match import Match, match_state
from hpcckpt.restoring.reader import Array, StepReader, load_backend
from hpcckpt.rundir import damage_records, discovery, pins
from hpcckpt.rundir.discovery import StepInfo
from hpcckpt.rundir.run_directory import Candidate, Lineage, RunDirectory
from hpcckpt.state.arrays import ScalarLeaf
from hpcckpt.state.tree import Finish, StateTree, TensorLeaf, flatten

_log = logging.getLogger("hpcckpt")


class PersistentTier(Protocol):
    """What a restore of a run with scratch needs of the tier that its steps are drained to."""

    @property
    def persistent(self) -> RunDirectory:
        """The run directory."""

    def candidates(self) -> list[Candidate]:
        """Return the steps of both tiers that may be restored, the best first. Root only."""

    def drain_missing(self, step: int | None) -> tuple[str, ...]:
        """Drain what can only be restored from the run directory; return what cannot be drained. Collective."""

    def resume_from(self, lineage: Lineage) -> None:
        """Note which step was restored. Independent."""


@dataclass(slots=True, eq=False)
class RestoreSource:
    """Where steps are restored from.

    Attributes
    ----------
    comm : Communicator
        The ranks.
    rundir : RunDirectory
        The run directory, or the run's directory on scratch.
    tier : PersistentTier or None
        If that is scratch: the tier that its steps are drained to.
    reading : Candidate or None
        Root only: the step that is being restored, and is pinned.
    """

    comm: Communicator
    rundir: RunDirectory
    tier: PersistentTier | None = None
    reading: Candidate | None = None
    reader_name: str = ""

    @property
    def path(self) -> Path:
        """The run directory, by which messages name the run."""
        return self.rundir.path if self.tier is None else self.tier.persistent.path


def restore(source: RestoreSource, state: Any, step: int | None, *, strict: bool) -> Restored:
    """Restore a step into `state`; without a number, the newest that is whole. Collective.

    Without a number a step that proves damaged while it is read (a checksum, a file that is cut short, an error of
    the disk, on whichever ranks) is skipped for the next older one, which overwrites all that the damaged one had
    written.  It is left as it is, as evidence, and this job's retention knows of it.

    Raises
    ------
    StepNotFoundError
        If there is no such step, or no step at all.
    NoRestorableStepError
        If there are steps, and none can be restored.
    CorruptError
        If the step that was asked for is damaged.
    StateMismatchError
        If names, shapes or dtypes of state and step differ; nothing was changed then, unless it says so.
    """
    attempt = _Attempt(strict, is_asked=step is not None, began=source.comm.clock.monotonic())
    tree = source.comm.agree("restore: read state", lambda: _read_state(state, step))
    for candidate in _select(source, step, attempt):
        try:
            with _reading(source):
                reader = _open(source, candidate)
                resolved, match = _match(source, tree, reader, attempt)
                arrays = _read(source, resolved, match, reader, attempt)
                _assign(source, resolved, match, arrays, reader)
        except CollectiveError as error:
            _skip(source, candidate, error, attempt)
        else:
            return _report(source, reader, match, arrays, attempt)
    if attempt.skipped:
        raise discovery.no_restorable_step(source.path, attempt.skipped, attempt.caution)
    raise StepNotFoundError(f"no restorable step in {source.path}: it has no steps")


def _read_state(state: Any, step: Any) -> StateTree:
    """Return the leaves of a state; refuse a step that is not a number. Independent."""
    if step is not None:
        layout.as_step(step)
    return flatten(state)


_UNREADABLE = frozenset({CorruptError.kind, UnprovenDamageError.kind, ManifestError.kind, StorageError.kind})
_OTHER_STEP_MAY_DO = _UNREADABLE | {RetiredError.kind, StepNotFoundError.kind, OlderStepError.kind}
_MAX_TRIES = 3


@dataclass(slots=True)
class _Attempt:
    """What a restore is asked for and has tried so far; the same on all ranks.

    Attributes
    ----------
    strict, is_asked : bool
        As the caller wants it, and whether by the number of a step.
    began : float
        When it did.
    skipped : list of str
        What keeps each step that was tried from being restored.
    tried : dict of Candidate to int
        How often each step was tried.
    touched : set of str
        Tensors that an unreadable step may have overwritten in part.
    is_complete : bool
        Whether all tensors of the step that is tried are read.
    last : Candidate or None
        After this one there is no other to try.
    """

    strict: bool
    is_asked: bool
    began: float
    skipped: list[str] = field(default_factory=list)
    tried: dict[Candidate, int] = field(default_factory=dict)
    touched: set[str] = field(default_factory=set)
    is_complete: bool = False
    last: Candidate | None = None

    @property
    def caution(self) -> str:
        """What to say where no good step overwrites what an unreadable one has written."""
        return "; the state may be partly overwritten" if self.touched else ""


def _skip(source: RestoreSource, candidate: Candidate, error: CollectiveError, attempt: _Attempt) -> None:
    """Record what is wrong with a step, and raise the error if no other step may do. Collective.

    One that was retired meanwhile may have been replaced, so it is tried again.
    """
    _remember(source, candidate, error)
    kinds = set(error.kinds.values())
    if candidate == attempt.last or not kinds <= _OTHER_STEP_MAY_DO:
        raise error
    n_tries = 1 if kinds == {RetiredError.kind} else _MAX_TRIES
    attempt.tried[candidate] = attempt.tried.get(candidate, 0) + n_tries
    attempt.skipped.append(_skipped(candidate.step, str(error)))


def _skipped(step: int, problem: str) -> str:
    """Return the warning about a step that was not restored; it names the step once. Pure."""
    return f"step {step} was skipped: {problem.removeprefix('restore ').removeprefix(f'step {step}: ')}"


def _remember(source: RestoreSource, candidate: Candidate, error: CollectiveError) -> None:
    """Let this job's retention know of a step that cannot be read, unless it is merely gone. Collective."""
    kinds = set(error.kinds.values())
    if not kinds & _UNREADABLE or RetiredError.kind in kinds:
        return

    owner, step = _owner(source, candidate.directory), candidate.step

    def identity() -> str | None:
        info = owner.steps.inspect(step)
        if info.manifest is None:
            return None
        texts = [text for rank, text in error.failures.items() if error.kinds[rank] == CorruptError.kind]
        save_id, system = info.manifest.save_id, owner.system
        if texts and not damage_records.record(owner.path, step, save_id, texts[0], "a restore", system):
            _log.warning("hpcckpt: that step %d is damaged cannot be recorded in %s", step, owner.path)
        return save_id

    save_id = source.comm.on_root(f"restore step {step}: remember", identity)
    if save_id is not None:
        owner.steps.damaged[step] = save_id


def _owner(source: RestoreSource, directory: Path) -> RunDirectory:
    """Return which of the two tiers a directory is. Independent."""
    if source.tier is None or directory == source.rundir.path:
        return source.rundir
    return source.tier.persistent


def _report(
    source: RestoreSource, reader: StepReader, match: Match, arrays: Mapping[str, Array], attempt: _Attempt
) -> Restored:
    """Return what was restored; note it in the journal, and log on root what the user has to know. Collective.

    That is an older step, or values of each rank that are not restored; every rank has it in `Restored.warnings`.
    """
    manifest = reader.manifest
    restored = Restored(
        step=manifest.step,
        metrics=dict(manifest.metrics),
        objects=dict(manifest.objects.get("user", {})),
        warnings=(*attempt.skipped, *source.comm.distinct(match.warnings)),
        path=reader.path,
        n_ranks=manifest.n_ranks,
        level=manifest.level,
        nbytes=sum(array.nbytes for array in arrays.values()),
        seconds=source.comm.clock.monotonic() - attempt.began,
        missing=match.missing,
        unexpected=match.unexpected,
        logged=(*attempt.skipped, *match.logged),
    )
    owner = _owner(source, reader.path.parent)
    owner.steps.damaged.pop(restored.step, None)  # what could not be read before could be read now
    is_checked = source.comm.is_root and attempt.is_asked and attempt.is_complete
    if is_checked and damage_records.clear(owner.path, restored.step, manifest.save_id, owner.system.files):
        _log.warning("hpcckpt: step %d was recorded as damaged and is whole: the record is removed", restored.step)
    source.rundir.journal.restored(restored, source.comm.size, attempt.skipped)
    if source.comm.is_root and restored.logged:
        _log.warning("hpcckpt: restored step %d: %s", restored.step, "; ".join(restored.logged))
    return restored


# -- select --------------------------------------------------------------------------------------


def _candidates(source: RestoreSource) -> list[Candidate]:
    """Return the steps there are, the newest first. Root only."""
    source.rundir.workspace.try_restore_names()  # no step of a save that failed is restored
    if source.tier is not None:
        return source.tier.candidates()
    return [Candidate(step, source.rundir.path) for step in reversed(source.rundir.steps.numbers())]


def _select(source: RestoreSource, step: int | None, attempt: _Attempt) -> Iterator[Candidate]:
    """Yield the steps to try: the copies of the one that was asked for, or the newest first. Collective."""
    step = None if step is None else layout.as_step(step)
    if source.tier is not None:
        attempt.skipped += source.tier.drain_missing(step)
    if step is not None:
        copies = _copies(source, step)
        attempt.last = copies[-1]
        yield from copies
        return
    while (chosen := _choose(source, attempt)) is not None:
        yield chosen


def _copies(source: RestoreSource, step: int) -> list[Candidate]:
    """Return where a step may be that was asked for, the nearest first; where it should be if nowhere. Collective."""
    if source.tier is None:
        return [Candidate(step, source.rundir.path)]
    found = source.comm.on_root(
        f"restore step {step}: look for it", lambda: [c for c in _candidates(source) if c.step == step]
    )
    return found or [Candidate(step, source.tier.persistent.path)]


def _choose(source: RestoreSource, attempt: _Attempt) -> Candidate | None:
    """Let root choose the newest step that was not tried, so that all ranks try the same. Collective."""

    def choose() -> tuple[Candidate | None, list[tuple[Candidate, str]]]:
        untried = [each for each in _candidates(source) if attempt.tried.get(each, 0) < _MAX_TRIES]
        infos = (_owner(source, each.directory).steps.inspect(each.step) for each in untried)
        chosen, passed = discovery.first_restorable(infos)
        problems = [(each, f"{info.problem}{_way_back(info)}") for each, info in zip(untried, passed, strict=False)]
        return None if chosen is None else untried[len(passed)], problems

    chosen, problems = source.comm.on_root("restore: look for steps", choose)
    for candidate, problem in problems:
        attempt.tried[candidate] = _MAX_TRIES
        attempt.skipped.append(_skipped(candidate.step, problem))
    return chosen


def _way_back(info: StepInfo) -> str:
    """Return how a step that is recorded as damaged can be used again. Pure."""
    return f" (to check it again: {command_line('verify', info.path.parent, info.step)})" if info.is_recorded else ""


# -- open ----------------------------------------------------------------------------------------


@contextlib.contextmanager
def _reading(source: RestoreSource) -> Iterator[None]:
    """Unpin the step that the block pins, however it ends. Collective."""
    if source.reading is not None:  # an interrupt came while it was unpinned
        _unpin(source)
    try:
        yield
    finally:
        if source.reading is not None:
            _unpin(source)


def _open(source: RestoreSource, candidate: Candidate) -> StepReader:
    """Let root pin the step and open it; every rank gets the same manifest and index. Collective."""
    step, directory = candidate

    def open_on_root() -> tuple[Path, Manifest, Index]:
        info = _usable(_owner(source, directory), step)
        _pin(source, candidate)
        assert info.manifest is not None
        backend = load_backend(info.manifest, source.rundir.backend)
        reader = StepReader(info.path, info.manifest, backend, system=source.rundir.system)
        return info.path, reader.manifest, reader.index

    path, manifest, index = source.comm.on_root(f"restore step {step}: open", open_on_root)
    backend = source.comm.agree(
        f"restore step {step}: load backend", lambda: load_backend(manifest, source.rundir.backend)
    )
    return StepReader(path, manifest, backend, index, system=source.rundir.system)


def _usable(rundir: RunDirectory, step: int) -> StepInfo:
    rundir.workspace.try_restore_names()
    info, files = rundir.steps.inspect(step), rundir.system.files
    if info.is_unread:  # proves nothing about the step
        raise StorageError(info.problem)
    if info.manifest is None:  # what is wrong is raised in its own class
        discovery.find_step(rundir.path, step, files=files)
        discovery.check_files(info.path, discovery.read_manifest(info.path, files), files)
        raise CorruptError(info.problem)
    return info


def _pin(source: RestoreSource, candidate: Candidate) -> None:
    """Keep retention away while we read; a directory that cannot be written is read without. Root only."""
    system = source.rundir.system
    source.reading, source.reader_name = candidate, pins.reader_name(system)
    with contextlib.suppress(StorageError, NoSpaceError):
        pins.pin(candidate.directory, candidate.step, source.reader_name, files=system.files)


def _unpin(source: RestoreSource) -> None:
    """Unpin the step that was read. Root only."""
    assert source.reading is not None
    (step, directory), system = source.reading, source.rundir.system
    with contextlib.suppress(StorageError, NoSpaceError):  # it expires
        pins.unpin(directory, step, source.reader_name, files=system.files)
    source.reading = None


# -- match ---------------------------------------------------------------------------------------


def _match(source: RestoreSource, tree: StateTree, reader: StepReader, attempt: _Attempt) -> tuple[StateTree, Match]:
    """Fit the state to a step, and match them; note which values may be left half overwritten from here on. Collective.

    A step has to overwrite all that one before it may have left half overwritten.
    """

    def match() -> tuple[StateTree, Match]:
        resolved = tree.resolved(reader.specs, reader.manifest.objects.get("state", {}))
        try:
            resolved, found = match_state(resolved, reader, source.comm, strict=attempt.strict)
        except StateMismatchError as error:
            raise StateMismatchError(f"{error}{attempt.caution}") from error
        left = sorted(attempt.touched - {*found.tensors, *found.scalars, *found.objects})
        if left:
            raise OlderStepError(f"it lacks {', '.join(left[:5])}, which the steps before may have overwritten in part")
        return resolved, found

    resolved, found = source.comm.agree(f"restore step {reader.manifest.step}: match", match)
    is_same_size = reader.manifest.n_ranks == source.comm.size  # else per-rank tensors may be left out, and shards
    attempt.is_complete = is_same_size and not found.unexpected and not resolved.ignored
    attempt.touched |= {name for name in found.tensors if _is_filled(resolved.tensors[name])}
    return resolved, found


def _is_filled(leaf: TensorLeaf) -> bool:
    """Return True if a restore that fails may leave a part of the values in the leaf. Pure."""
    return leaf.declaration.spec.kind != "per-rank" and not isinstance(leaf, ScalarLeaf)


# -- read and assign -----------------------------------------------------------------------------


class _Reading:
    """What this rank reads of a step, into the state's own memory where it may be, and how far it is.

    Parameters
    ----------
    reader : StepReader
        The step.
    tree : StateTree
        The state.
    match : Match
        What goes from the one into the other.
    rank, n_ranks : int
        This rank, and the number of ranks.
    """

    def __init__(self, reader: StepReader, tree: StateTree, match: Match, rank: int, n_ranks: int) -> None:
        self.arrays: dict[str, Array] = dict(match.scalars)
        self.is_cancelled = False
        self._reader, self._rank = reader, rank
        self._own: list[str] = []
        self._saved_by = rank if reader.manifest.n_ranks == n_ranks else 0
        self._wanted: list[tuple[str, Extent, Array]] = []
        self._progress = ("", 0)
        for name in match.tensors:
            leaf = tree.tensors[name]
            if leaf.declaration.spec.kind == "per-rank":
                self._own.append(name)
                continue
            extent = leaf.declaration.extent
            target = leaf.target()
            if target is None:
                target = np.empty(extent.shape, numpy_dtype(leaf.declaration.spec.dtype))
            self.arrays[name] = target
            self._wanted.append((name, extent, target))
        self._nbytes = sum(target.nbytes for _, _, target in self._wanted)

    def __call__(self) -> dict[str, Array]:
        """Read and verify. Independent."""
        failpoints.reached("9-restore", self._rank)
        for name in self._own:
            self.arrays[name] = self._reader.load_rank(name, self._saved_by)
        self._reader.fill(self._wanted, self._report)
        return self.arrays

    def _report(self, file: str, n_read: int) -> None:
        if self.is_cancelled:
            raise RetryError("the restore was broken off")
        self._progress = (file, n_read)

    def describe(self) -> str:
        """Return how far it is, in words."""
        file, n_read = self._progress
        return f"reads {file or 'its part'}, {n_read} of {self._nbytes} bytes so far"


def _read(
    source: RestoreSource, tree: StateTree, match: Match, reader: StepReader, attempt: _Attempt
) -> dict[str, Array]:
    """Read what this rank has to; where no other step will be tried, an error says what it means. Collective."""
    comm, where = source.comm, f"restore step {reader.manifest.step}"
    reading = comm.agree(f"{where}: prepare", lambda: _Reading(reader, tree, match, comm.rank, comm.size))

    def read() -> dict[str, Array]:
        try:
            return reading() if comm.size == 1 else _read_on_thread(comm, reading)
        except (CorruptError, StorageError) as error:
            if not attempt.is_asked:
                raise
            raise type(error)(f"{error}{attempt.caution}") from error

    return comm.agree(f"{where}: read", read)


def _read_on_thread(comm: Communicator, reading: _Reading) -> dict[str, Array]:
    """Read while this thread exchanges messages: so all ranks know of a read that hangs. Collective."""
    comm.calls.announce(reading.describe())
    task = Task(reading, comm.executor.flag(), is_daemon=True, clock=comm.clock, executor=comm.executor)
    task.start()  # a daemon: a read that never returns must not keep the program
    try:
        wait_until(comm, lambda: task.outcome is not None, lambda: [comm.rank], doing=reading.describe)
    except BaseException as error:
        reading.is_cancelled = True
        if not isinstance(error, HpcckptError):  # Ctrl-C: the program may use the state's arrays again
            task.join("the read of a restore that was interrupted")
        raise
    if task.error is not None:
        raise task.error
    assert task.outcome is not None
    if task.outcome.failure is not None:
        raise error_of(task.outcome.failure)
    return reading.arrays


def _assign(
    source: RestoreSource, tree: StateTree, match: Match, arrays: Mapping[str, Array], reader: StepReader
) -> None:
    """Assign to the state what was read; the run continues from this step now. Collective."""

    def assign() -> None:
        for name, array in arrays.items():
            tree.tensors[name].assign(array)
        for name, value in match.objects.items():
            tree.objects[name].assign(value)
        for finish in tree.finishes:
            if isinstance(finish, Finish):
                finish.run()

    manifest = reader.manifest
    source.comm.agree(f"restore step {manifest.step}: assign", assign)
    source.rundir.lineage = Lineage(manifest.run_id, manifest.save_id, manifest.step)
    _owner(source, reader.path.parent).workspace.keep(manifest.save_id)
    if source.tier is not None:
        source.tier.resume_from(source.rundir.lineage)
