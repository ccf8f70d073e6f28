"""How a Keras model and a checkpoint fit: which tensor goes into which variable, and all that differs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpcckpt.core.tensors import TensorSpec
from hpcckpt.errors import Problem, StateMismatchError
from hpcckpt.keras.model.layer_state import LayerStateLeaf, fitted, warn_of_absent
from hpcckpt.keras.model.layers import RNG_STATE
from hpcckpt.keras.model.state import MODEL, OPTIMIZER, leaves
from hpcckpt.state.tree import TensorLeaf

MISSING, UNEXPECTED, MISMATCH = "missing", "unexpected", "mismatch"
Specs = Mapping[str, TensorSpec]


@dataclass(frozen=True, slots=True, eq=False)
class MatchResult:
    """Result of matching a model with a checkpoint.

    Attributes
    ----------
    prefix : str
        The prefix of the model's names in the checkpoint.
    leaves : dict of str to TensorLeaf
        The matching leaves, by name in the checkpoint.
    problems : tuple of Problem
        The mismatches: tensors missing in the checkpoint or in the model, or of another shape or dtype.
    """

    prefix: str
    leaves: Mapping[str, TensorLeaf]
    problems: tuple[Problem, ...]

    def names(self, kind: str) -> tuple[str, ...]:
        """Return the names of the tensors with one kind of problem."""
        return tuple(problem.loc for problem in self.problems if problem.kind == kind)


def compare(
    model: Any, specs: Specs, names: Sequence[str], *, with_optimizer: bool = False, is_partial: bool = False
) -> MatchResult:
    """Compare a built model with a checkpoint. Independent.

    Parameters
    ----------
    model : keras.Model
        The model. Random and other states of its layers that the checkpoint has not count as there.
    specs : mapping of str to TensorSpec
        What the checkpoint holds.
    names : sequence of str
        What of it may be used.
    with_optimizer : bool
        Compare the model's optimizer too, if there is one in the checkpoint.
    is_partial : bool
        Whether the model may have what is not among these names.

    Raises
    ------
    StateMismatchError
        If the model could be any of several that the checkpoint holds.
    """
    own = weights_of(model)
    weights = {name: leaf for name, leaf in own.items() if not _is_absent(name, leaf, names)}
    prefix = find_prefix(list(weights), names)
    if not is_partial:
        warn_of_absent({_join(prefix, name): leaf for name, leaf in own.items() if name not in weights})
    wanted = {_join(prefix, name): leaf for name, leaf in weights.items()}
    below = weights_below(prefix, names) if prefix else []
    more = [name for name in below if name not in wanted and not _is_random_state(name)]  # Keras 2.15 has no states
    problems = [Problem(name, "is not in the model", UNEXPECTED) for name in more]
    if with_optimizer:
        of_optimizer, others = _optimizer_of(model, prefix, names)
        wanted |= of_optimizer
        problems += [Problem(name, "is not in the model's optimizer", UNEXPECTED) for name in others]
    there = set(names)
    if not is_partial:
        absent = [name for name in wanted if name not in there]
        problems += [Problem(name, "is not in the checkpoint", MISSING) for name in absent]
    found = {name: fitted(leaf, specs[name]) for name, leaf in wanted.items() if name in there}
    problems += [problem for name, leaf in found.items() if (problem := _mismatch(specs[name], leaf))]
    unfit = {problem.loc for problem in problems}
    return MatchResult(prefix, {name: leaf for name, leaf in found.items() if name not in unfit}, tuple(problems))


def tensor_leaves(thing: Any, name: str = "") -> dict[str, TensorLeaf]:
    """Return the tensors of a model or optimizer by the names that they have in a checkpoint."""
    found = [leaf for leaf in leaves(thing, name) or () if isinstance(leaf, TensorLeaf)]
    return {leaf.declaration.spec.name: leaf for leaf in found}


def weights_of(model: Any) -> dict[str, TensorLeaf]:
    """Return the weights of a model by their names within it, without its optimizer."""
    head = f"{MODEL}/"
    return {name[len(head) :]: leaf for name, leaf in tensor_leaves(model).items() if name.startswith(head)}


def find_prefix(wanted: Sequence[str], stored: Sequence[str]) -> str:
    """Return the prefix of a model's names in a checkpoint: ``model`` in ``model/conv2d/kernel``. Pure.

    If no place has all of them, it is the one that has the most.

    Raises
    ------
    StateMismatchError
        If the checkpoint holds several such models, or several that fit equally well.
    """
    there, known = set(stored), set(wanted)
    ends = [(name, one) for name in stored for one in _ends_of(name) if one in known]
    counts: dict[str, int] = {}
    for prefix in sorted({name[: -len(one)].rstrip("/") for name, one in ends}):
        if any(part.endswith(OPTIMIZER) for part in prefix.split("/")):
            continue  # its slots are named after the weights
        counts[prefix] = sum(_join(prefix, one) in there for one in wanted)
    whole = _outside_optimizers([prefix for prefix, count in counts.items() if count == len(wanted)], there)
    if MODEL in whole or len(whole) == 1:
        return MODEL if MODEL in whole else whole[0]
    if whole:
        raise StateMismatchError(f"the model fits {_choice(whole)}")
    places = _outside_optimizers([*counts], there)
    most = max((counts[prefix] for prefix in places), default=0)
    best = [prefix for prefix in places if counts[prefix] == most]
    if MODEL in best or not best:
        return MODEL
    if len(best) > 1:
        raise StateMismatchError(f"{most} of {len(wanted)} weights of the model fit each of {_choice(best)}")
    return best[0]


def _choice(prefixes: Sequence[str]) -> str:
    shown = ", ".join(map(repr, prefixes))
    return f"{shown}; choose one with names='{prefixes[0]}/*' (on the command line --only '{prefixes[0]}/*')"


def _ends_of(name: str) -> Iterator[str]:
    """Yield a name, and what is left of it without its first parts. Pure."""
    yield name
    while "/" in name:
        name = name.partition("/")[2]
        yield name


def _outside_optimizers(prefixes: list[str], names: Iterable[str]) -> list[str]:
    """Return the prefixes that are not below something that counts iterations; all, if each is. Pure."""
    counting = {name.rpartition("/")[0] for name in names if name.endswith("/iteration")}
    outside = [prefix for prefix in prefixes if not _parents(prefix.rpartition("/")[0]) & counting]
    return outside or prefixes


def _join(prefix: str, name: str) -> str:
    return f"{prefix}/{name}" if prefix else name


def _is_absent(name: str, leaf: TensorLeaf, names: Sequence[str]) -> bool:
    """Return True for what a checkpoint need not have and has not: random states, and states of layers."""
    is_optional = _is_random_state(name) or isinstance(leaf, LayerStateLeaf)
    return is_optional and not any(f"/{each}".endswith(f"/{name}") for each in names)


def _is_random_state(name: str) -> bool:
    return name.rpartition("/")[2].startswith(RNG_STATE)


def _optimizer_of(model: Any, prefix: str, names: Sequence[str]) -> tuple[dict[str, TensorLeaf], list[str]]:
    """Return the leaves of a model's optimizers, and what the checkpoint has besides; nothing if it has none."""
    base = prefix or MODEL
    beside = base.rpartition("/")[0] if base.rpartition("/")[2] == MODEL else base
    depth = len(beside.split("/")) if beside else 0
    weights = {_join(base, name) for name in weights_of(model)}
    own = {name: leaf for name, leaf in tensor_leaves(model, base).items() if name not in weights}
    roots = {"/".join(name.split("/")[: depth + 1]) for name in own}
    stored = {name for name in names if "/".join(name.split("/")[: depth + 1]) in roots} - weights
    return (own, sorted(stored - own.keys())) if stored else ({}, [])


def weights_below(prefix: str, names: Iterable[str]) -> list[str]:
    """Return the names below `prefix`, but for optimizers, which are there if the model is not called ``model``."""
    start = len(prefix) + 1 if prefix else 0
    below = [name for name in names if not prefix or name.startswith(f"{prefix}/")]
    optimizers = _optimizers_below(prefix, set(below))
    return [
        name
        for name in below
        if not (name[start:].partition("/")[0].endswith("optimizer") or _parents(name) & optimizers)
    ]


def _optimizers_below(prefix: str, names: set[str]) -> set[str]:
    """Return the paths of a model's optimizers: they count iterations, and have a rate or slots for weights. Pure."""
    counting = {name.rpartition("/")[0] for name in names if name.endswith("/iteration")} - {prefix}
    return {
        path
        for path in counting
        if f"{path}/learning_rate" in names
        or f"{path}/current_learning_rate" in names
        or any(_join(prefix, _slot_of(name, path)) in names for name in names if name.startswith(f"{path}/"))
    }


def _slot_of(name: str, optimizer: str) -> str:
    """Return the weight that a slot is for: ``dense/kernel`` of ``opt/m/dense/kernel``. Pure."""
    return name[len(optimizer) + 1 :].partition("/")[2]


def _parents(name: str) -> set[str]:
    """Return the paths that a name is below: ``a`` and ``a/b`` of ``a/b/c``, and the name itself. Pure."""
    parts = name.split("/")
    return {"/".join(parts[:end]) for end in range(1, len(parts) + 1)}


def _mismatch(there: TensorSpec, leaf: TensorLeaf) -> Problem | None:
    here = leaf.declaration.spec
    if (there.shape, there.dtype) == (here.shape, here.dtype):
        return None
    texts = [f"{spec.dtype} {list(spec.shape)}" for spec in (there, here)]
    return Problem(there.name, f"is {texts[0]} in the checkpoint, {texts[1]} in the model", MISMATCH)
