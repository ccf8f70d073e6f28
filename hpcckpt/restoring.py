"""How a step is restored, from directory to state: choose, match, read, assign.

Every rank checks the bytes it reads against the same checksums, so replicas that were restored are equal.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hpcckpt import discovery, phases
from hpcckpt.discovery import StepInfo
from hpcckpt.dtypes import numpy_dtype
from hpcckpt.errors import (
    CorruptError,
    NoSpaceError,
    Problem,
    StateMismatchError,
    StepNotFoundError,
    StorageError,
    list_problems,
)
from hpcckpt.loading import Array, StepReader, load_backend
from hpcckpt.manifest import Manifest
from hpcckpt.plan import Index
from hpcckpt.run import Lineage, Restored, Run
from hpcckpt.snapshot import StateTree, TensorLeaf, flatten


def restore(run: Run, state: Any, step: int | None, *, strict: bool) -> Restored:
    """Restore a step into `state`; without a number, the newest that is whole. Collective.

    Raises
    ------
    StepNotFoundError
        If there is no such step, or none that can be restored.
    CorruptError
        If the step that was asked for is damaged.
    StateMismatchError
        If names, shapes or dtypes of state and step differ; nothing was changed then.
    """
    began = time.monotonic()
    tree = run.comm.agree("restore: read state", lambda: flatten(state))
    choice = _choose(run, step)
    skipped: list[str] = []
    for candidate, problem in choice.steps:
        if problem:
            skipped.append(f"step {candidate} was skipped: {problem}")
            continue
        try:
            return _restore_one(run, tree, candidate, _Wish(strict, tuple(skipped), began))
        except CorruptError as error:
            if choice.is_asked:
                raise
            skipped.append(f"step {candidate} was skipped: {error}")
    raise StepNotFoundError(f"no restorable step in {run.directory}" + "".join(f"; {text}" for text in skipped))


class _Wish(NamedTuple):
    """How the caller wants it, and what happened before."""

    strict: bool
    warnings: tuple[str, ...]
    began: float


def _restore_one(run: Run, tree: StateTree, step: int, wish: _Wish) -> Restored:
    """Open, match, read, assign. Collective."""
    reader = _open(run, step)
    where = f"restore step {step}"
    try:
        match = run.comm.agree(f"{where}: match", lambda: match_state(tree, reader, run.comm.size, strict=wish.strict))
        arrays = run.comm.agree(f"{where}: read", lambda: _read(reader, tree, match, run.comm.rank))
    finally:
        if run.comm.is_root:
            _unpin(run.directory, step)
    run.comm.agree(f"{where}: assign", lambda: _assign(tree, arrays, match.objects))
    run.lineage = Lineage(reader.manifest.run_id, reader.manifest.save_id, step)
    return Restored(
        step=step,
        metrics=dict(reader.manifest.metrics),
        objects=dict(reader.manifest.objects.get("user", {})),
        warnings=wish.warnings + match.warnings,
        path=reader.path,
        n_ranks=reader.manifest.n_ranks,
        level=reader.manifest.level,
        nbytes=sum(array.nbytes for array in arrays.values()),
        seconds=time.monotonic() - wish.began,
        missing=match.missing,
        unexpected=match.unexpected,
    )


# -- choose --------------------------------------------------------------------------------------


class _Choice(NamedTuple):
    """Which steps to try, in this order, each with what keeps it from being restored ("" if nothing is known of)."""

    steps: tuple[tuple[int, str], ...]
    is_asked: bool


def _choose(run: Run, step: int | None) -> _Choice:
    """Let root choose, so that all ranks try the same steps. Collective."""

    def choose() -> _Choice:
        if step is not None:
            return _Choice(((step, ""),), is_asked=True)
        return _Choice(tuple((info.step, info.problem) for info in discovery.scan(run.directory)[::-1]), is_asked=False)

    return run.comm.on_root("restore: look for steps", choose)


def _open(run: Run, step: int) -> StepReader:
    """Let root open the step and pin it; every rank gets the same manifest and index. Collective."""

    def open_on_root() -> tuple[Path, Manifest, Index]:
        info = _usable(run.directory, step)
        _pin(run.directory, step)
        try:
            reader = StepReader(info.path, info.manifest, load_backend(info.manifest, run.backend))  # type: ignore[arg-type]
        except BaseException:
            _unpin(run.directory, step)
            raise
        return info.path, reader.manifest, reader.index

    path, manifest, index = run.comm.on_root(f"restore step {step}: open", open_on_root)
    backend = run.comm.agree(f"restore step {step}: load backend", lambda: load_backend(manifest, run.backend))
    return StepReader(path, manifest, backend, index)


def _usable(directory: Path, step: int) -> StepInfo:
    info = discovery.find_step(directory, step)
    if info.manifest is None:
        discovery.check_files(info.path, discovery.read_manifest(info.path))  # raises what is wrong, in its own class
        raise CorruptError(info.problem)
    return info


def _reader_name() -> str:
    return f"reader-{os.uname().nodename}-{os.getpid()}"


def _pin(directory: Path, step: int) -> None:
    """Keep retention away while we read; a directory that cannot be written is read without."""
    with contextlib.suppress(StorageError, NoSpaceError):
        discovery.pin(directory, step, _reader_name())


def _unpin(directory: Path, step: int) -> None:
    with contextlib.suppress(StorageError):
        discovery.unpin(directory, step, _reader_name())


# -- match ---------------------------------------------------------------------------------------


class Match(NamedTuple):
    """What of a step goes into a state.

    Attributes
    ----------
    tensors : tuple of str
        Names to read.
    objects : dict
        JSON values by name.
    warnings, missing, unexpected : tuple of str
        What does not come back.
    """

    tensors: tuple[str, ...]
    objects: Mapping[str, Any]
    warnings: tuple[str, ...]
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]


def match_state(tree: StateTree, reader: StepReader, n_ranks: int, *, strict: bool) -> Match:
    """Compare a state with a step, and say what to read. Pure.

    Raises
    ------
    StateMismatchError
        Naming every difference in names, shapes and dtypes, as far as `strict` asks.
    """
    stored_objects: Mapping[str, Any] = reader.manifest.objects.get("state", {})
    saved, own = set(reader.specs) | set(stored_objects), set(tree.tensors) | set(tree.objects)
    missing, unexpected = tuple(sorted(own - saved)), tuple(sorted(saved - own))
    shared = [name for name in tree.tensors if name in reader.specs]
    problems = [p for name in shared for p in _leaf_problems(tree.tensors[name], reader)]
    problems += _nature_problems(tree, reader.specs, stored_objects)
    gone = [] if reader.manifest.n_ranks == n_ranks else [n for n in shared if reader.specs[n].kind == "per-rank"]
    if strict:
        problems += [Problem(repr(name), "is in the state but not in the checkpoint", "missing") for name in missing]
        problems += [
            Problem(repr(name), "is in the checkpoint but not in the state", "unexpected") for name in unexpected
        ]
    unfit = {problem.loc for problem in problems}
    fitting = [name for name in shared if repr(name) not in unfit]
    objects = {name: stored_objects[name] for name in tree.objects if name in stored_objects}
    if (strict and problems) or (own and not fitting and not objects):
        shown = list_problems(problems) or "they have no name in common"
        raise StateMismatchError(
            f"step {reader.manifest.step} of {reader.path.parent} does not fit this state: {shown}; "
            "build the same model and optimizer, or pass strict=False to restore what fits"
        )
    return Match(
        tuple(name for name in fitting if name not in gone),
        objects,
        tuple(_warnings(gone, missing, unexpected, problems, reader.manifest.n_ranks, n_ranks)),
        missing,
        unexpected,
    )


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


def _warnings(
    gone: Sequence[str],
    missing: Sequence[str],
    unexpected: Sequence[str],
    problems: Sequence[Problem],
    saved_ranks: int,
    n_ranks: int,
) -> list[str]:
    texts = []
    if gone:
        texts.append(
            f"saved on {saved_ranks} ranks, restored on {n_ranks}: per-rank {', '.join(gone)} left as they are"
        )
    if missing:
        texts.append(f"not in the checkpoint, left as they are: {', '.join(missing)}")
    if unexpected:
        texts.append(f"in the checkpoint, not used: {', '.join(unexpected)}")
    texts += [f"{problem.loc} {problem.message}, left as it is" for problem in problems if problem.kind == "invalid"]
    return texts


# -- read and assign -----------------------------------------------------------------------------


def _read(reader: StepReader, tree: StateTree, match: Match, rank: int) -> dict[str, Array]:
    """Read this rank's extents, into the state's own memory where it may be, and verify. Independent."""
    phases.reached("9-restore", rank)
    arrays: dict[str, Array] = {}
    wanted = []
    for name in match.tensors:
        leaf = tree.tensors[name]
        if leaf.declaration.spec.kind == "per-rank":
            arrays[name] = reader.load_rank(name, rank)
            continue
        extent = leaf.declaration.extent
        target = leaf.target()
        if target is None:
            target = np.empty(extent.shape, numpy_dtype(leaf.declaration.spec.dtype))
        arrays[name] = target
        wanted.append((name, extent, target))
    reader.fill(wanted)
    return arrays


def _assign(tree: StateTree, arrays: Mapping[str, Array], objects: Mapping[str, Any]) -> None:
    for name, array in arrays.items():
        tree.tensors[name].assign(array)
    for name, value in objects.items():
        tree.objects[name].assign(value)
    for finish in tree.finishes:
        finish.run()
