"""Variables that a compiled step uses and that are nowhere else in a checkpoint, by names that do not change.

States of stateful layers, generators, a variable of the program that a loss reads: Keras lists none of them.  Each is
named after the place where it is found: ``lstm/states/0`` is in the attribute ``states`` of the layer ``lstm``, and
``loss/codebook`` in an attribute of the loss.  One that only the code of a step holds is named after itself and counted
in the order in which the step uses such variables, which is the same in every process that has the same step.
"""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hpcckpt.keras.model.layers import is_layer, named_layers
from hpcckpt.keras.model.naming import Namer, variable_name
from hpcckpt.state.tf_variables import is_variable, tensorflow_variable
from hpcckpt.state.tree import join

_COMPILED = ("loss", "compiled_loss", "_compile_loss", "compiled_metrics", "_compile_metrics", "optimizer")
"""What ``compile`` gives a model, in Keras 2.15 and in Keras 3."""
_STATES = ("state", "_state_var", "_generator")
"""Where generators of TensorFlow and Keras keep theirs."""
_MAX_DEPTH = 4


def owners(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield the layers of a model, what it was compiled with, and the model itself, each with its path."""
    yield from named_layers(model)
    for attribute in _COMPILED:
        owner = getattr(model, attribute, None)
        if owner is not None:
            yield attribute.strip("_"), owner
    yield "", model


def named_variables(model: Any, variables: Sequence[Any]) -> dict[str, Any]:
    """Return these variables of TensorFlow by name. Independent."""
    wanted = {id(variable): variable for variable in variables}
    namer, found, seen = Namer(), dict[int, str](), set[int]()
    for path, owner in owners(model):
        for name, variable in _variables_in(owner, path, 0, seen):
            if id(variable) in wanted and id(variable) not in found:
                found[id(variable)] = namer.take(name)
    for variable in variables:
        if id(variable) not in found:
            found[id(variable)] = namer.take(join("step", variable_name(variable.name)))
    return {found[id(variable)]: variable for variable in variables}


def _variables_in(value: Any, path: str, depth: int, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """Yield the variables in an object's attributes, with their paths."""
    if is_variable(value):
        yield path, tensorflow_variable(value, path)
        return
    if depth and (depth > _MAX_DEPTH or id(value) in seen or is_layer(value)):
        return
    seen.add(id(value))
    for name, item in _items(value, depth):
        yield from _variables_in(item, join(path, name.strip("_") or "item"), depth + 1, seen)


def _items(value: Any, depth: int) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        yield from ((str(key), item) for key, item in value.items())
    elif isinstance(value, list | tuple):
        yield from ((str(number), item) for number, item in enumerate(value))
    elif hasattr(value, "__dict__") and not isinstance(value, type | types.FunctionType | types.ModuleType):
        attributes = vars(value)
        states = [(name, attributes[name]) for name in _STATES if name in attributes]
        public_first = sorted(attributes.items(), key=lambda item: (item[0].startswith("_"), item[0]))
        yield from states[:1] if depth and states else public_first
