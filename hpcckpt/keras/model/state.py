"""Adapter for Keras models, layers and optimizers, and for TensorFlow and Keras variables."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from hpcckpt.core.tensors import TensorSpec
from hpcckpt.errors import Problem
from hpcckpt.keras.model.batch_norm import weight_leaves
from hpcckpt.keras.model.layer_state import layer_state_leaves, restoring_parts
from hpcckpt.keras.model.layers import Weight, is_layer, named_weights
from hpcckpt.keras.model.naming import variable_name
from hpcckpt.keras.model.optimizers import (
    HELD,
    build,
    build_as_saved,
    extra_leaves,
    held_optimizers,
    is_built,
    is_optimizer,
    optimizer_leaves,
)
from hpcckpt.state.tf_variables import is_variable, variable_leaf
from hpcckpt.state.tree import DynamicPart, Leaf, Resolved, TensorLeaf, join

_log = logging.getLogger("hpcckpt")
MODEL, OPTIMIZER = "model", "optimizer"
_SHOWN = 5
"""How many names of one sort are logged."""


def leaves(obj: Any, name: str) -> Iterator[Leaf] | None:
    """Return the leaves of a model, layer, optimizer or variable; ``None`` for anything else. Independent.

    Parameters
    ----------
    obj : object
        The thing.
    name : str
        What the names begin with; empty for the state itself, then ``model`` or ``optimizer`` is used.

    Raises
    ------
    StateError
        If it is not built, or holds what cannot be saved.
    """
    if is_variable(obj):
        return iter([variable_leaf(obj, name or variable_name(obj.name))])
    if is_layer(obj):
        return _model_leaves(obj, name or MODEL)
    if is_optimizer(obj):
        leaves_of = _leaves_of if is_built(obj) else optimizer_leaves  # which says what is not built
        return leaves_of(obj, name or OPTIMIZER, ())
    return None


def _model_leaves(model: Any, name: str) -> Iterator[Leaf]:
    weights = named_weights(model)
    own = [*weight_leaves(model, name, weights), *layer_state_leaves(model, name)]
    yield from own
    yield from _optimizer_leaves(model, name, weights)
    optional = {join(name, weight.path) for weight in weights if weight.is_optional}
    yield from restoring_parts(model, own, optional)


def _beside(name: str) -> str:
    """Return the paths of a model's optimizers: beside one that is called ``model``, else below the model."""
    parent, _, last = name.rpartition("/")
    return parent if last == MODEL else name


def _optimizer_leaves(model: Any, name: str, weights: list[Weight]) -> Iterator[Leaf]:
    """Yield the leaves of the compiled optimizer, and of others that the model and its parts hold (GANs)."""
    compiled = getattr(model, "optimizer", None)
    if compiled is not None:
        is_new = not is_built(compiled)
        build(compiled, model)
        yield from _leaves_of(compiled, join(_beside(name), OPTIMIZER), weights, is_new=is_new)
    for path, optimizer, is_of_part in held_optimizers(model):
        place = join(name if is_of_part else _beside(name), path)
        yield from _leaves_of(optimizer, place, weights, may_be_absent=True)


def _leaves_of(
    optimizer: Any, name: str, weights: Sequence[Weight], *, is_new: bool = False, may_be_absent: bool = False
) -> Iterator[Leaf]:
    """Yield the leaves of an optimizer, none yet if it is not built: a restore builds it for what the checkpoint has.

    Of one that `is_new`, built for this state, checkpoints may lack all slots of some weights: a loop may train a part
    of the model only. Of one that `may_be_absent` they may lack everything.
    """
    own = {leaf.declaration.spec.name: leaf for leaf in _present(optimizer, name, weights)}

    def resolve(specs: Mapping[str, TensorSpec], _objects: Mapping[str, Any]) -> Resolved:
        stored = {each for each in specs if each.startswith(f"{name}/")}
        if own and not stored and may_be_absent:
            _log.warning("hpcckpt: %s is not in the checkpoint: the optimizer keeps what it has", name)
            return Resolved(dropped=own)
        build_as_saved(optimizer, name, sorted(stored), weights)
        if stored and not is_built(optimizer):
            text = "has no variables yet; call its build(variables) with the variables that it trains, then restore"
            return Resolved(ignored=stored, problems=[Problem(name, f"{type(optimizer).__name__} {text}")])
        now = {leaf.declaration.spec.name: leaf for leaf in _present(optimizer, name, weights)}
        held = f"{join(name, HELD)}/"
        absent = {each for each in own if each.startswith(held)} - stored
        unknown = {each for each in stored if each.startswith(held)} - now.keys()
        untrained = _untrained(own.keys() - absent, stored, name, weights) if is_new else set()
        for text, found in (("is not in the checkpoint", absent | untrained), ("is only in the checkpoint", unknown)):
            for each in sorted(found)[:_SHOWN]:
                _log.warning("hpcckpt: %s %s: the optimizer keeps what it has", each, text)
        leaves = [leaf for each, leaf in now.items() if each not in own and each in stored]
        return Resolved(leaves, absent | untrained, ignored=unknown)

    yield from own.values()
    yield DynamicPart(resolve, name)


def _untrained(own: Collection[str], stored: Collection[str], name: str, weights: Sequence[Weight]) -> set[str]:
    """Return the slots of weights that a checkpoint has no slot of, if it has slots of these kinds for others. Pure."""

    def slot_and_path(full: str) -> tuple[str, str]:
        slot, _, path = full[len(name) + 1 :].partition("/")
        return slot, path

    paths = {weight.path for weight in weights}
    known = {(slot, path) for slot, path in map(slot_and_path, stored) if path in paths}
    slots, trained = {slot for slot, _ in known}, {path for _, path in known}
    return {
        full
        for full in own
        if (pair := slot_and_path(full))[0] in slots and pair[1] in paths and pair[1] not in trained
    }


def _present(optimizer: Any, name: str, weights: Sequence[Weight]) -> Iterator[TensorLeaf]:
    if is_built(optimizer):
        yield from optimizer_leaves(optimizer, name, weights)
        yield from extra_leaves(optimizer, name, weights)
