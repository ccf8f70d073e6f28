"""Adapter for Keras models, layers and optimizers, and for TensorFlow and Keras variables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hpcckpt.keras.model.batch_norm import weight_leaves
from hpcckpt.keras.model.layer_state import layer_state_leaves, restoring_parts
from hpcckpt.keras.model.layers import Weight, is_layer, named_weights
from hpcckpt.keras.model.naming import variable_name
from hpcckpt.keras.model.optimizers import build, is_optimizer, optimizer_leaves
from hpcckpt.state.tf_variables import is_variable, variable_leaf
from hpcckpt.state.tree import Leaf, join

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
    yield from restoring_parts(model, own)


def _beside(name: str) -> str:
    """Return the paths of a model's optimizers: beside one that is called ``model``, else below the model."""
    parent, _, last = name.rpartition("/")
    return parent if last == MODEL else name


def _optimizer_leaves(model: Any, base: str, weights: list[Weight]) -> Iterator[Leaf]:
    """Yield the leaves of the compiled optimizer, and of others that the model holds (GANs)."""
    compiled = getattr(model, "optimizer", None)
    if compiled is not None:
        build(compiled, model)
        yield from optimizer_leaves(compiled, join(base, OPTIMIZER), weights)
    for attribute, value in sorted(vars(model).items()):
        if value is not compiled and is_optimizer(value):
            yield from optimizer_leaves(value, join(base, attribute.strip("_")), weights)
