"""How a state and a step fit: what is read, and every difference."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from hpcckpt.collective.communicator import Communicator
from hpcckpt.errors import Problem, StateMismatchError, list_problems
from hpcckpt.restoring.aliases import OTHER_VALUE, RestoredValues, repeated_objects, separate_aliases
from hpcckpt.restoring.reader import Array, StepReader
from hpcckpt.restoring.scalars import match_scalars
from hpcckpt.state.arrays import JSON_SUFFIX
from hpcckpt.state.tree import StateTree, TensorLeaf


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
    saved, own = {*specs, *stored_objects} - tree.ignored, {*tree.tensors, *tree.objects}
    missing, unexpected = tuple(sorted(own - saved)), tuple(sorted(saved - own))
    converted = scalars.names
    renamed = _other_nature(missing, unexpected)
    shared = [name for name in tree.tensors if name in specs and name not in converted]
    problems = [*tree.problems]
    problems += [p for name in shared for p in _leaf_problems(tree.tensors[name], reader)]
    problems += _nature_problems(tree, converted, specs, stored_objects)
    problems += scalars.problems
    objects = {name: stored_objects[name] for name in tree.objects if name in stored_objects} | scalars.objects
    values = RestoredValues(reader, scalars.tensors, objects, comm.rank if is_same_size else None)
    repeated = repeated_objects(tree, [*_fitting([*shared, *scalars.tensors], problems), *objects], values)
    if repeated:  # whatever `strict` is: an object cannot be given a part of its state
        raise StateMismatchError(_refusal(reader, [*problems, *repeated], is_all=True))
    tree, shared_memory = separate_aliases(tree, _fitting(shared, problems), values)
    problems += shared_memory
    own_values = [] if is_same_size else [name for name in shared if specs[name].kind == "per-rank"]
    of_root = [name for name in own_values if specs[name].is_for_any_ranks]
    gone = sorted({*own_values, *scalars.gone}.difference(of_root))
    not_read = {*gone}
    if strict:
        problems += [Problem(repr(name), text) for name, text in sorted({*renamed.values()})]
        text = "is in the state but not in the checkpoint"
        problems += [Problem(repr(name), text, "missing") for name in missing if name not in renamed]
        text = "is in the checkpoint but not in the state"
        problems += [Problem(repr(name), text, "unexpected") for name in unexpected if name not in renamed]
    fitting = _fitting(shared, problems)
    objects = {name: objects[name] for name in _fitting([*objects], problems)}
    tensors = {name: scalars.tensors[name] for name in _fitting([*scalars.tensors], problems)}
    if (strict and problems) or (own and not (fitting or objects or tensors or scalars.gone)):
        raise StateMismatchError(_refusal(reader, problems, is_training=own >= _OF_TRAINING))
    not_restored = _not_restored(gone, of_root, reader.manifest.n_ranks, comm.size)
    warnings = (*not_restored, *_warnings(missing, unexpected, problems))
    is_partial = bool(missing or problems)  # what is only in the checkpoint was left out on purpose, or renamed
    return tree, Match(
        tuple(name for name in fitting if name not in not_read),
        objects,
        tensors,
        warnings,
        missing,
        unexpected,
        warnings if is_partial else not_restored,
    )


def _refusal(reader: StepReader, problems: list[Problem], *, is_training: bool = False, is_all: bool = False) -> str:
    shown = list_problems(problems) or "they have no name in common"
    is_repaired = "repaired" in reader.manifest.environment
    why = " (its manifest was rebuilt by 'hpcckpt repair', and the objects were lost)" if is_repaired else ""
    part = "pass strict=False to restore what fits"
    if is_training:
        place = repr(os.fspath(reader.path.parent))
        part = (
            f"load what fits, hpcckpt.keras.load_weights(model, {place}, strict=False), and train in another directory"
        )
    return (
        f"step {reader.manifest.step} of {reader.path.parent} does not fit this state: {shown}{why}; "
        f"{_remedy(problems)}{'' if is_all else f', or {part}'}"
    )


def _remedy(problems: list[Problem]) -> str:
    """Return what to change in a state that does not fit. Pure."""
    if problems and all(problem.message.endswith(OTHER_VALUE) for problem in problems):
        return "give each its own memory (copy.deepcopy) before the restore"
    if any(problem.loc.startswith(("'model/", "'optimizer/")) for problem in problems):
        return "build the same model and optimizer"
    if any("has shape" in problem.message for problem in problems):
        return (
            "pass a state with the same shapes (of an array of which each rank holds a part "
            "hpcckpt.Sharded(part, global_shape, offset))"
        )
    return "pass a state with the same names, shapes and dtypes"


def _fitting(names: Sequence[str], problems: Sequence[Problem]) -> Sequence[str]:
    """Return the names that have no problem. Pure."""
    unfit = {problem.loc for problem in problems}
    return [name for name in names if repr(name) not in unfit] if unfit else names


def _other_nature(missing: Sequence[str], unexpected: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Return, by both names of each, what is a JSON value of each rank on one side and something else on the other.

    The values are the name that the program knows, and what differs. Pure.
    """
    end, found = f"/{JSON_SUFFIX}", {}
    for one, other, text in (
        (missing, unexpected, "is a JSON value of each rank in the checkpoint and something else in the state"),
        (unexpected, missing, "is a JSON value of each rank in the state and something else in the checkpoint"),
    ):
        for name in {*one} & {each.removesuffix(end) for each in other if each.endswith(end)}:
            found[name] = found[name + end] = name, text
    return found


def _nature_problems(
    tree: StateTree, converted: set[str], specs: Mapping[str, Any], objects: Mapping[str, Any]
) -> list[Problem]:
    tensors_now = [name for name in tree.tensors if name in objects and name not in converted]
    objects_now = [name for name in tree.objects if name in specs and name not in converted]
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


def _not_restored(gone: Sequence[str], of_root: Sequence[str], saved_ranks: int, n_ranks: int) -> tuple[str, ...]:
    """Return the warning about values that each rank has for itself, where the number of ranks differs. Pure."""
    if not (gone or of_root):
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
    if of_root:
        have = "has" if len(of_root) == 1 else "have"
        names = _listed([_entry_text(name) for name in of_root])
        texts.append(f"{names} {have} rank 0's value on each rank: saved on {before}, restored on {n_ranks}")
    return ("; ".join(texts),)


def _entry_text(name: str) -> str:
    """Return how a program calls the entry of its state that has a tensor: ``state["rng"]`` for ``rng/json``. Pure."""
    key, _, rest = name.removesuffix(f"/{JSON_SUFFIX}").partition("/")
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
