"""The variables of a model, named, in the order in which TMCI hands them over.

First the weights, as Keras lists them, then the optimizer's variables, as it lists them: for LeNet5 with Adam 8 and 17
in Keras 2.15, 8 and 18 in Keras 3, which lists the learning rate too.  A plugin that finds tensors by their names gets
what those lists lack besides: the learning rate of Keras 2.15, the seeds of random layers, loss scales, the optimizers
of a GAN.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from hpcckpt.core.tensors import Kind
from hpcckpt.errors import StateError
from hpcckpt.keras.model.layer_state import LayerStateLeaf, layer_state_leaves
from hpcckpt.keras.model.layers import is_layer, named_weights
from hpcckpt.keras.model.optimizers import build, own_variables
from hpcckpt.keras.model.state import MODEL
from hpcckpt.state.packing import unpack
from hpcckpt.state.tf_variables import tensorflow_variable
from hpcckpt.state.tree import TensorLeaf, flatten, join


class Named(NamedTuple):
    """A TensorFlow variable, by the name that it has in checkpoints."""

    name: str
    variable: Any
    kind: Kind = "replicated"


def weights_of(model: Any) -> list[Named]:
    """Return the weights and random states of a model, in the order of its layers; the optimizer stays as it is.

    Raises
    ------
    StateError
        If it is no Keras model, or not built.
    """
    if not is_layer(model):
        raise StateError(f"model: a {type(model).__name__} is no Keras model")
    states = [leaf for leaf in layer_state_leaves(model, MODEL) if not leaf.is_given]
    others = [leaf.declaration.spec.name for leaf in states if unpack(leaf.read()) != ({}, None)]
    if others:
        raise StateError(
            f"{', '.join(others)}: TMCI takes variables only, and this is none; give the layer its vocabulary or bins "
            "when it is made, or save the model with hpcckpt.Checkpointer"
        )
    weights = [(join(MODEL, weight.path), weight) for weight in named_weights(model)]
    return [Named(name, tensorflow_variable(weight.variable, name), weight.kind) for name, weight in weights]


def variables_of(model: Any, *, include_optimizer: bool, everything: bool) -> list[Named]:
    """Return the variables of a model, TMCI's first.

    Parameters
    ----------
    model : keras.Model
        The model, built.
    include_optimizer : bool
        Whether the optimizer's variables are wanted; then they are made if they are not there yet.
    everything : bool
        Whether what TMCI leaves out is wanted too.
    """
    found = weights_of(model)
    listed = list(model.weights)
    if include_optimizer:
        optimizer = getattr(model, "optimizer", None)
        if optimizer is not None:
            build(optimizer, model)
            listed += own_variables(optimizer)
        found = _all(model)
    by_identity = {id(named.variable): named for named in found}
    first = [
        by_identity.get(id(held), Named(f"other/{number}", held))
        for number, held in enumerate(tensorflow_variable(variable, "variable") for variable in listed)
    ]
    first = list({id(named.variable): named for named in first}.values())
    taken = {id(named.variable) for named in first}
    return first + ([named for named in found if id(named.variable) not in taken] if everything else [])


def _all(model: Any) -> list[Named]:
    """Return all variables of a model and its optimizers, sorted by name."""
    leaves: Iterable[TensorLeaf] = flatten({MODEL: model}).tensors.values()
    variables = [leaf for leaf in leaves if not isinstance(leaf, LayerStateLeaf)]
    return [Named(leaf.declaration.spec.name, leaf.source, leaf.declaration.spec.kind) for leaf in variables]


def named(variables: Mapping[str, Any] | Iterable[Any]) -> list[Named]:
    """Return variables that the caller has named, or by TensorFlow's own names of them.

    Raises
    ------
    StateError
        If two have one name.
    """
    pairs = list(variables.items()) if isinstance(variables, Mapping) else [(_own_name(v), v) for v in variables]
    twice = [name for name, count in Counter(name for name, _ in pairs).items() if count > 1]
    if twice:
        raise StateError(f"several variables are called {', '.join(twice)}: pass them as a dict, with your own names")
    return [Named(name, tensorflow_variable(variable, name)) for name, variable in pairs]


def _own_name(variable: Any) -> str:
    return str(variable.name).partition(":")[0]
