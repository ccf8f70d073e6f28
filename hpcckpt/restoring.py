"""How a step is restored, from directory to state: choose, match, read, assign.

Every rank checks the bytes it reads against the same checksums, so replicas that were restored are equal.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hpcckpt import damage, discovery, layout, phases
from hpcckpt.collective.communicator import Communicator
from hpcckpt.collective.waits import wait_until
from hpcckpt.discovery import StepInfo
from hpcckpt.draining import Flag, Task
from hpcckpt.dtypes import numpy_dtype
from hpcckpt.errors import (
    CollectiveError,
    CorruptError,
    HpcckptError,
    ManifestError,
    NoSpaceError,
    OlderStepError,
    Problem,
    RetiredError,
    RetryError,
    StateMismatchError,
    StepNotFoundError,
    StorageError,
    error_of,
    list_problems,
)
from hpcckpt.loading import Array, StepReader, load_backend
from hpcckpt.manifest import Manifest
from hpcckpt.plan import Index
from hpcckpt.run import Candidate, Lineage, Restored, Run
from hpcckpt.scalars import match_scalars
from hpcckpt.snapshot import Finish, StateTree, TensorLeaf, flatten
from hpcckpt.tensors import Extent
from hpcckpt.values import ScalarLeaf

_log = logging.getLogger("hpcckpt")


def restore(run: Run, state: Any, step: int | None, *, strict: bool) -> Restored:
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
    attempt = _Attempt(strict, is_asked=step is not None, began=time.monotonic())
    tree = run.comm.agree("restore: read state", lambda: _read_state(state, step))
    step = None if step is None else layout.as_step(step)
    if run.tier is not None:
        attempt.skipped += run.tier.bring_home(step)
    copies = [] if step is None else _copies(run, step)
    for candidate in copies or _walk(run, attempt):
        try:
            restored = _restore_one(run, tree, candidate, attempt)
        except CollectiveError as error:
            _remember(run, candidate, error)
            if candidate in copies[-1:] or not set(error.kinds.values()) <= _OTHER_STEP_MAY_DO:
                raise
            attempt.skip(candidate, error)
        else:
            _tell(run, restored, attempt)
            return restored
    if attempt.skipped:
        raise discovery.no_restorable_step(run.directory, attempt.skipped, attempt.caution)
    raise StepNotFoundError(f"no restorable step in {run.directory}: it has no steps")


def _read_state(state: Any, step: Any) -> StateTree:
    """Return the leaves of a state; refuse a step that is not a number. Independent."""
    if step is not None:
        layout.as_step(step)
    return flatten(state)


_UNREADABLE = frozenset({CorruptError.kind, ManifestError.kind, StorageError.kind})
_OTHER_STEP_MAY_DO = _UNREADABLE | {RetiredError.kind, StepNotFoundError.kind, OlderStepError.kind}
_MAX_TRIES = 3


@dataclass(slots=True)
class _Attempt:
    """What a restore wants and has tried so far; alike on all ranks.

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
    """

    strict: bool
    is_asked: bool
    began: float
    skipped: list[str] = field(default_factory=list)
    tried: dict[Candidate, int] = field(default_factory=dict)
    touched: set[str] = field(default_factory=set)
    is_complete: bool = False

    def skip(self, candidate: Candidate, error: CollectiveError) -> None:
        """Try a step no more; one that was retired meanwhile may have been replaced, so it gets another try or two."""
        is_retired = set(error.kinds.values()) == {RetiredError.kind}
        self.tried[candidate] = self.tried.get(candidate, 0) + (1 if is_retired else _MAX_TRIES)
        self.skipped.append(f"step {candidate.step} was skipped: {error}")

    @property
    def caution(self) -> str:
        """What to say where no good step overwrites what an unreadable one has written."""
        return "; the state may be partly overwritten" if self.touched else ""


def _remember(run: Run, candidate: Candidate, error: CollectiveError) -> None:
    """Let this job's retention know of a step that cannot be read, unless it is merely gone. Collective."""
    kinds = set(error.kinds.values())
    if not kinds & _UNREADABLE or RetiredError.kind in kinds:
        return

    owner, step = _owner(run, candidate.directory), candidate.step

    def identity() -> str | None:
        info = discovery.inspect_step(owner.directory, step, owner.manifests)
        if info.manifest is None:
            return None
        texts = [text for rank, text in error.failures.items() if error.kinds[rank] == CorruptError.kind]
        if texts and not damage.record(owner.directory, step, info.manifest.save_id, texts[0], "a restore"):
            _log.warning("hpcckpt: that step %d is damaged cannot be recorded in %s", step, owner.directory)
        return info.manifest.save_id

    save_id = run.comm.on_root(f"restore step {step}: remember", identity)
    if save_id is not None:
        owner.damaged[step] = save_id


def _owner(run: Run, directory: Path) -> Run:
    """Return the run that a directory is of: this one, or that behind scratch. Independent."""
    return run if run.tier is None or directory == run.directory else run.tier.home


def _tell(run: Run, restored: Restored, attempt: _Attempt) -> None:
    """Log once, on root, that an older step was taken, or that values of each rank are not restored. Independent.

    `Restored.warnings` has both on every rank.
    """
    owner = _owner(run, restored.path.parent)
    owner.damaged.pop(restored.step, None)  # what could not be read before could be read now
    if run.comm.is_root and attempt.is_asked and attempt.is_complete:
        assert run.lineage.save_id is not None
        if damage.clear(owner.directory, restored.step, run.lineage.save_id):
            _log.warning("hpcckpt: step %d was recorded as damaged and is whole: the record is removed", restored.step)
    run.journal.restored(restored, run.comm.size, attempt.skipped)
    if run.comm.is_root and restored.logged:
        _log.warning("hpcckpt: restored step %d: %s", restored.step, "; ".join(restored.logged))


def _restore_one(run: Run, tree: StateTree, candidate: Candidate, attempt: _Attempt) -> Restored:
    """Restore a step, and unpin it whatever happens. Collective."""
    if run.read is not None:  # an interrupt came while it was unpinned
        _unpin(run)
    try:
        return _restore_pinned(run, tree, candidate, attempt)
    finally:
        if run.read is not None:
            _unpin(run)


def _restore_pinned(run: Run, tree: StateTree, candidate: Candidate, attempt: _Attempt) -> Restored:
    """Open, match, read, assign. Collective."""
    step = candidate.step
    reader = _open(run, candidate)
    where = f"restore step {step}"
    tree, match = run.comm.agree(f"{where}: match", lambda: _match(tree, reader, run.comm, attempt))
    is_same_size = reader.manifest.n_ranks == run.comm.size  # else per-rank tensors may be left out, and shards
    attempt.is_complete = is_same_size and not match.unexpected and not tree.unasked
    attempt.touched |= {name for name in match.tensors if _is_filled(tree.tensors[name])}
    reading = run.comm.agree(f"{where}: prepare", lambda: _Reading(reader, tree, match, run.comm.rank))
    arrays = run.comm.agree(f"{where}: read", lambda: _read_or_warn(run, reading, attempt))
    run.comm.agree(f"{where}: assign", lambda: _assign(tree, arrays, match.objects))
    run.lineage = Lineage(reader.manifest.run_id, reader.manifest.save_id, step)
    if run.tier is not None:
        run.tier.stands_on(run.lineage)
    return Restored(
        step=step,
        metrics=dict(reader.manifest.metrics),
        objects=dict(reader.manifest.objects.get("user", {})),
        warnings=(*attempt.skipped, *run.comm.distinct(match.warnings)),
        path=reader.path,
        n_ranks=reader.manifest.n_ranks,
        level=reader.manifest.level,
        nbytes=sum(array.nbytes for array in arrays.values()),
        seconds=time.monotonic() - attempt.began,
        missing=match.missing,
        unexpected=match.unexpected,
        logged=(*attempt.skipped, *match.logged),
    )


def _is_filled(leaf: TensorLeaf) -> bool:
    """Return True if a restore that fails may leave a part of the values in the leaf. Pure."""
    return leaf.declaration.spec.kind != "per-rank" and not isinstance(leaf, ScalarLeaf)


# -- choose --------------------------------------------------------------------------------------


def _candidates(run: Run) -> list[Candidate]:
    """Return the steps there are, the newest first. Root only."""
    if run.tier is not None:
        return run.tier.candidates()
    return [Candidate(step, run.directory) for step in reversed(discovery.step_numbers(run.directory))]


def _copies(run: Run, step: int) -> list[Candidate]:
    """Return where a step may be that was asked for, the nearest first; where it should be if nowhere. Collective."""
    if run.tier is None:
        return [Candidate(step, run.directory)]
    found = run.comm.on_root(
        f"restore step {step}: look for it", lambda: [c for c in _candidates(run) if c.step == step]
    )
    return found or [Candidate(step, run.tier.home.directory)]


def _walk(run: Run, attempt: _Attempt) -> Iterator[Candidate]:
    """Yield the newest step that was not tried, as long as there is one. Collective."""
    while (chosen := _choose(run, attempt)) is not None:
        yield chosen


def _choose(run: Run, attempt: _Attempt) -> Candidate | None:
    """Let root choose the newest step that was not tried, so that all ranks try the same. Collective."""

    def choose() -> tuple[Candidate | None, list[tuple[Candidate, str]]]:
        untried = [each for each in _candidates(run) if attempt.tried.get(each, 0) < _MAX_TRIES]
        infos = (
            discovery.inspect_step(each.directory, each.step, _owner(run, each.directory).manifests) for each in untried
        )
        chosen, passed = discovery.first_restorable(infos)
        problems = [(each, f"{info.problem}{_way_back(info)}") for each, info in zip(untried, passed, strict=False)]
        return None if chosen is None else untried[len(passed)], problems

    chosen, problems = run.comm.on_root("restore: look for steps", choose)
    for candidate, problem in problems:
        attempt.tried[candidate] = _MAX_TRIES
        attempt.skipped.append(f"step {candidate.step} was skipped: {problem}")
    return chosen


def _way_back(info: StepInfo) -> str:
    """Return how a step that is recorded as damaged can be used again. Pure."""
    return f" (to check it again: hpcckpt verify {info.path.parent} {info.step})" if info.is_recorded else ""


def _open(run: Run, candidate: Candidate) -> StepReader:
    """Let root pin the step and open it; every rank gets the same manifest and index. Collective."""
    step, directory = candidate

    def open_on_root() -> tuple[Path, Manifest, Index]:
        info = _usable(_owner(run, directory), step)
        _pin(run, candidate)
        reader = StepReader(info.path, info.manifest, load_backend(info.manifest, run.backend))  # type: ignore[arg-type]
        return info.path, reader.manifest, reader.index

    path, manifest, index = run.comm.on_root(f"restore step {step}: open", open_on_root)
    backend = run.comm.agree(f"restore step {step}: load backend", lambda: load_backend(manifest, run.backend))
    return StepReader(path, manifest, backend, index)


def _usable(run: Run, step: int) -> StepInfo:
    info = discovery.inspect_step(run.directory, step, run.manifests)
    if info.is_unread:  # proves nothing about the step
        raise StorageError(info.problem)
    if info.manifest is None:  # what is wrong is raised in its own class
        discovery.find_step(run.directory, step)
        discovery.check_files(info.path, discovery.read_manifest(info.path))
        raise CorruptError(info.problem)
    return info


def _pin(run: Run, candidate: Candidate) -> None:
    """Keep retention away while we read; a directory that cannot be written is read without. Root only."""
    run.read = candidate
    with contextlib.suppress(StorageError, NoSpaceError):
        discovery.pin(candidate.directory, candidate.step, discovery.reader_name())


def _unpin(run: Run) -> None:
    """Unpin the step that was read. Root only."""
    assert run.read is not None
    with contextlib.suppress(StorageError):
        discovery.unpin(run.read.directory, run.read.step, discovery.reader_name())
    run.read = None


# -- match ---------------------------------------------------------------------------------------


class Match(NamedTuple):
    """What of a step goes into a state.

    Attributes
    ----------
    tensors : tuple of str
        Names to read.
    objects : dict
        JSON values by name.
    scalars : dict of str to ndarray
        Single numbers that were saved in another form, as the state has them.
    warnings, missing, unexpected : tuple of str
        What does not come back.
    logged : tuple of str
        Those of the warnings that rank 0 logs: if something of the state is not restored.
    """

    tensors: tuple[str, ...]
    objects: Mapping[str, Any]
    scalars: Mapping[str, Array]
    warnings: tuple[str, ...]
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    logged: tuple[str, ...] = ()


def _match(tree: StateTree, reader: StepReader, comm: Communicator, attempt: _Attempt) -> tuple[StateTree, Match]:
    """Fit the state to a step, and match them. Independent.

    A step has to overwrite all that one before it may have left half overwritten.
    """
    tree = tree.fitted(reader.specs, reader.manifest.objects.get("state", {}))
    try:
        tree, match = match_state(tree, reader, comm, strict=attempt.strict)
    except StateMismatchError as error:
        raise StateMismatchError(f"{error}{attempt.caution}") from error
    left = sorted(attempt.touched - {*match.tensors, *match.scalars, *match.objects})
    if left:
        raise OlderStepError(f"it lacks {', '.join(left[:5])}, which the steps before may have overwritten in part")
    return tree, match


def match_state(tree: StateTree, reader: StepReader, comm: Communicator, *, strict: bool) -> tuple[StateTree, Match]:
    """Compare a state with a step; return the state's leaves that fit it, and what to read. Independent.

    Raises
    ------
    StateMismatchError
        Naming every difference in names, shapes and dtypes, as far as `strict` asks.
    """
    is_same_size = reader.manifest.n_ranks == comm.size
    scalars = match_scalars(tree, reader, comm.rank if is_same_size else None)
    tree, (specs, stored_objects) = scalars.tree, scalars.stored
    saved, own = {*specs, *stored_objects} - tree.unasked, {*tree.tensors, *tree.objects}
    missing, unexpected = tuple(sorted(own - saved)), tuple(sorted(saved - own))
    shared = [name for name in tree.tensors if name in specs and name not in scalars.names]
    problems = [p for name in shared for p in _leaf_problems(tree.tensors[name], reader)]
    converted = set(map(repr, scalars.names))
    problems += [p for p in _nature_problems(tree, specs, stored_objects) if p.loc not in converted]
    problems += scalars.problems
    own_values = [] if is_same_size else [name for name in shared if specs[name].kind == "per-rank"]
    gone = sorted([*own_values, *scalars.gone])
    if strict:
        problems += _absences(missing, unexpected)
    unfit = {problem.loc for problem in problems}
    fitting = [name for name in shared if repr(name) not in unfit]
    objects = {name: stored_objects[name] for name in tree.objects if name in stored_objects} | scalars.objects
    if (strict and problems) or (own and not (fitting or objects or scalars.tensors or scalars.gone)):
        raise StateMismatchError(_refusal(reader, problems))
    not_restored = _not_restored(gone, reader.manifest.n_ranks, comm.size)
    warnings = (*not_restored, *_warnings(missing, unexpected, problems))
    is_partial = bool(missing or problems)  # what is only in the checkpoint was left out on purpose, or renamed
    return tree, Match(
        tuple(name for name in fitting if name not in gone),
        objects,
        scalars.tensors,
        warnings,
        missing,
        unexpected,
        warnings if is_partial else not_restored,
    )


def _refusal(reader: StepReader, problems: list[Problem]) -> str:
    shown = list_problems(problems) or "they have no name in common"
    is_repaired = "repaired" in reader.manifest.environment
    why = " (its manifest was rebuilt by 'hpcckpt repair', and the objects were lost)" if is_repaired else ""
    return (
        f"step {reader.manifest.step} of {reader.path.parent} does not fit this state: {shown}{why}; "
        f"{_remedy(reader, problems)}, or pass strict=False to restore what fits"
    )


def _remedy(reader: StepReader, problems: list[Problem]) -> str:
    """Return what to change in a state that does not fit. Pure."""
    if any(name.startswith(("model/", "optimizer/")) for name in reader.specs):
        return "build the same model and optimizer"
    if any("has shape" in problem.message for problem in problems):
        return (
            "pass a state with the same shapes (of an array of which each rank holds a part "
            "hpcckpt.Sharded(part, global_shape, offset))"
        )
    return "pass a state with the same names, shapes and dtypes"


def _absences(missing: Sequence[str], unexpected: Sequence[str]) -> list[Problem]:
    return [Problem(repr(name), "is in the state but not in the checkpoint", "missing") for name in missing] + [
        Problem(repr(name), "is in the checkpoint but not in the state", "unexpected") for name in unexpected
    ]


def _nature_problems(tree: StateTree, specs: Mapping[str, Any], objects: Mapping[str, Any]) -> list[Problem]:
    tensors_now = [name for name in tree.tensors if name in objects]
    objects_now = [name for name in tree.objects if name in specs]
    return [Problem(repr(name), "is an object in the checkpoint and a tensor in the state") for name in tensors_now] + [
        Problem(repr(name), "is a tensor in the checkpoint and an object in the state") for name in objects_now
    ]


def _leaf_problems(leaf: TensorLeaf, reader: StepReader) -> list[Problem]:
    spec = leaf.declaration.spec
    saved = reader.specs[spec.name]
    problems = []
    if (spec.kind == "per-rank") != (saved.kind == "per-rank"):
        problems.append(Problem(repr(spec.name), f"is {saved.kind} in the checkpoint and {spec.kind} in the state"))
    elif spec.kind != "per-rank" and spec.shape != saved.shape:
        problems.append(
            Problem(repr(spec.name), f"has shape {saved.shape} in the checkpoint and {spec.shape} in the state")
        )
    if spec.dtype != saved.dtype:
        problems.append(Problem(repr(spec.name), f"is {saved.dtype} in the checkpoint and {spec.dtype} in the state"))
    return problems


def _not_restored(gone: Sequence[str], saved_ranks: int, n_ranks: int) -> tuple[str, ...]:
    """Return the warning about values that each rank has for itself, where the number of ranks differs. Pure."""
    if not gone:
        return ()
    before = f"{saved_ranks} rank{'s' if saved_ranks > 1 else ''}"
    is_training = set(gone) >= _OF_TRAINING
    own = [name for name in gone if not (is_training and name.startswith(_TRAINING_PARTS))]
    texts = []
    if is_training:
        texts.append(
            f"saved on {before}, now {n_ranks}: the training resumes at level weights, with rank 0's callbacks and "
            "statistics, and new random streams"
        )
    if own:
        was, them = ("was", "it") if len(own) == 1 else ("were", "them")
        texts.append(
            f"{_listed([_entry_text(name) for name in own])} {was} not restored: saved on {before}, restored on "
            f"{n_ranks}; set {them} in the program, or restart on {before}"
        )
    return ("; ".join(texts),)


def _entry_text(name: str) -> str:
    """Return how a program calls the entry of its state that has a tensor: ``state["rng"]`` for ``rng/json``. Pure."""
    key, _, rest = name.removesuffix("/json").partition("/")
    return f'state["{key}"]' + (f" ({rest})" if rest else "")


_SHOWN = 10
_OF_TRAINING = {"training/callbacks", "training/iterator"}
_TRAINING_PARTS = ("training/", "callbacks/", "model/", "optimizer/", "data/")
"""What of a Keras training each rank has for itself is set by the Keras shell, not by the program."""


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{', '.join(names[:_SHOWN])}{more}"


def _warnings(missing: Sequence[str], unexpected: Sequence[str], problems: Sequence[Problem]) -> list[str]:
    texts = []
    if missing:
        texts.append(f"not in the checkpoint, left as they are: {_listed(missing)}")
    if unexpected:
        texts.append(f"in the checkpoint, not used: {_listed(unexpected)}")
    texts += [f"{problem.loc} {problem.message}, left as it is" for problem in problems if problem.kind == "invalid"]
    return texts


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
    rank : int
        This rank.
    """

    def __init__(self, reader: StepReader, tree: StateTree, match: Match, rank: int) -> None:
        self.arrays: dict[str, Array] = dict(match.scalars)
        self.is_cancelled = False
        self._reader, self._rank = reader, rank
        self._own: list[str] = []
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
        phases.reached("9-restore", self._rank)
        for name in self._own:
            self.arrays[name] = self._reader.load_rank(name, self._rank)
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


def _read_or_warn(run: Run, reading: _Reading, attempt: _Attempt) -> dict[str, Array]:
    """Read; where no other step will be tried, add to an error what it means for the state. Collective."""
    try:
        return _read(run, reading)
    except (CorruptError, StorageError) as error:
        if not attempt.is_asked:
            raise
        raise type(error)(f"{error}{attempt.caution}") from error


def _read(run: Run, reading: _Reading) -> dict[str, Array]:
    """Read on a thread, while this one exchanges messages: so a read that hangs is known to all ranks. Collective."""
    if run.comm.size == 1:
        return reading()
    run.comm.calls.announce(reading.describe())
    task = Task(reading, Flag(), is_daemon=True).start()  # a read that never returns must not keep the program
    try:
        wait_until(run.comm, lambda: task.outcome is not None, lambda: [run.comm.rank], doing=reading.describe)
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


def _assign(tree: StateTree, arrays: Mapping[str, Array], objects: Mapping[str, Any]) -> None:
    for name, array in arrays.items():
        tree.tensors[name].assign(array)
    for name, value in objects.items():
        tree.objects[name].assign(value)
    for finish in tree.finishes:
        if isinstance(finish, Finish):
            finish.run()
