"""Adapter for Keras models, layers and optimizers, and for TensorFlow and Keras variables."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

from hpcckpt.core.tensors import TensorSpec
from hpcckpt.errors import Problem
from hpcckpt.keras.model.batch_norm import weight_leaves
from hpcckpt.keras.model.layer_state import layer_state_leaves, restoring_parts
from hpcckpt.keras.model.layers import Weight, is_layer, named_weights
from hpcckpt.keras.model.naming import variable_name
from hpcckpt.keras.model.optimizers import build, held_optimizers, is_built, is_optimizer, optimizer_leaves
from hpcckpt.state.tf_variables import is_variable, variable_leaf
from hpcckpt.state.tree import DynamicPart, Leaf, Resolved, join

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
        return optimizer_leaves(obj, name or OPTIMIZER)
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
        build(compiled, model)
        leaves_of = optimizer_leaves if is_built(compiled) else _held_leaves
        yield from leaves_of(compiled, join(base, OPTIMIZER), weights)
    for path, optimizer in held_optimizers(model):
        yield from _held_leaves(optimizer, join(base, path), weights)


def _held_leaves(optimizer: Any, name: str, weights: list[Weight]) -> Iterator[Leaf]:
    """Yield the leaves of an optimizer that a model holds; one without variables has none yet."""
    own = [*optimizer_leaves(optimizer, name, weights)] if is_built(optimizer) else []

    def resolve(specs: Mapping[str, TensorSpec], _objects: Mapping[str, Any]) -> Resolved:
        stored = [each for each in specs if each.startswith(f"{name}/")]
        if stored and not own:
            text = "has no variables yet; call its build(variables) with the variables that it trains, then restore"
            return Resolved(ignored=stored, problems=[Problem(name, f"{type(optimizer).__name__} {text}")])
        if own and not stored:
            _log.warning("hpcckpt: %s is not in the checkpoint: the optimizer keeps what it has", name)
            return Resolved(dropped=[leaf.declaration.spec.name for leaf in own])
        return Resolved()

    yield from own
    yield DynamicPart(resolve)
