"""Adapter for Keras models, layers and optimizers, and for TensorFlow and Keras variables."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hpcckpt.core.tensors import TensorSpec
from hpcckpt.errors import Problem
from hpcckpt.keras.model.batch_norm import weight_leaves
from hpcckpt.keras.model.layer_state import layer_state_leaves, restoring_parts
from hpcckpt.keras.model.layers import Weight, is_layer, named_weights
from hpcckpt.keras.model.naming import variable_name
from hpcckpt.keras.model.optimizers import (
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
        return iter([*optimizer_leaves(obj, name or OPTIMIZER), *extra_leaves(obj, name or OPTIMIZER)])
    return None


def _model_leaves(model: Any, name: str) -> Iterator[Leaf]:
    weights = named_weights(model)
    own = [*weight_leaves(model, name, weights), *layer_state_leaves(model, name)]
    yield from own
    yield from _optimizer_leaves(model, _beside(name), weights)
    optional = {join(name, weight.path) for weight in weights if weight.is_optional}
    yield from restoring_parts(model, own, optional)


def _beside(name: str) -> str:
    """Return the paths of a model's optimizers: beside one that is called ``model``, else below the model."""
    parent, _, last = name.rpartition("/")
    return parent if last == MODEL else name


def _optimizer_leaves(model: Any, base: str, weights: list[Weight]) -> Iterator[Leaf]:
    """Yield the leaves of the compiled optimizer, and of others that the model holds (GANs)."""
    compiled = getattr(model, "optimizer", None)
    if compiled is not None:
        is_new = not is_built(compiled)
        build(compiled, model)
        yield from _leaves_of(compiled, join(base, OPTIMIZER), weights, is_new=is_new)
    for path, optimizer in held_optimizers(model):
        yield from _leaves_of(optimizer, join(base, path), weights)


def _leaves_of(optimizer: Any, name: str, weights: Sequence[Weight], *, is_new: bool = False) -> Iterator[Leaf]:
    """Yield the leaves of an optimizer, none yet if it is not built: a restore builds it for what the checkpoint has.

    Of one that `is_new`, built for this state, checkpoints may lack slots: a loop may train a part of the model only.
    """
    own = {leaf.declaration.spec.name: leaf for leaf in _present(optimizer, name, weights)}

    def resolve(specs: Mapping[str, TensorSpec], _objects: Mapping[str, Any]) -> Resolved:
        stored = [each for each in specs if each.startswith(f"{name}/")]
        if own and not stored:
            _log.warning("hpcckpt: %s is not in the checkpoint: the optimizer keeps what it has", name)
            return Resolved(dropped=own)
        build_as_saved(optimizer, name, stored, weights)
        if stored and not is_built(optimizer):
            text = "has no variables yet; call its build(variables) with the variables that it trains, then restore"
            return Resolved(ignored=stored, problems=[Problem(name, f"{type(optimizer).__name__} {text}")])
        now = {leaf.declaration.spec.name: leaf for leaf in _present(optimizer, name, weights)}
        extra = {leaf.declaration.spec.name for leaf in extra_leaves(optimizer, name, weights)}
        absent = [each for each in own if each not in specs and (is_new or each in extra)]
        for each in absent if not is_new else ():
            _log.warning("hpcckpt: %s is not in the checkpoint: the optimizer keeps what it has", each)
        return Resolved([leaf for each, leaf in now.items() if each not in own and each in specs], absent)

    yield from own.values()
    yield DynamicPart(resolve)


def _present(optimizer: Any, name: str, weights: Sequence[Weight]) -> Iterator[TensorLeaf]:
    if is_built(optimizer):
        yield from optimizer_leaves(optimizer, name, weights)
        yield from extra_leaves(optimizer, name, weights)
