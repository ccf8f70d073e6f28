"""The variables of a Keras optimizer, each named after the weight it belongs to.

Taken are: the slots, one variable for each trained weight, which optimizers keep in lists along those
weights; all else in ``optimizer.variables``; and variables that are attributes and missing there
(learning rates and Nadam's ``u_product`` in Keras 2.15, the hyperparameters of legacy optimizers).
Wrappers such as Horovod's, a subclass made on the fly, change nothing of that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from hpcckpt.core.tensors import name_problem
from hpcckpt.errors import StateError
from hpcckpt.keras.model.layers import RNG_STATE, Weight, generators_in, is_of_keras, is_of_keras_2, named_layers
from hpcckpt.keras.model.naming import Namer, remembered, variable_name
from hpcckpt.state.tf_variables import is_variable, variable_leaf
from hpcckpt.state.tree import TensorLeaf, join

_NOT_SLOTS = {"_variables", "_trainable_variables", "_weights"}
HELD = "held"
"""What the names begin with, below the optimizer's, of what a class of the program holds beside variables."""
_OF_TRACKING = {"_tracked", "_tracker"}
"""Where Keras lists what a model holds."""


class _Trained(NamedTuple):
    """A weight that the optimizer was built for: its path, and what Keras calls it."""

    path: str
    keras_path: str


def is_optimizer(obj: Any) -> bool:
    """Return True if `obj` is a Keras optimizer."""
    return hasattr(obj, "apply_gradients") and hasattr(type(obj), "iterations")


def held_optimizers(model: Any) -> list[tuple[str, Any, bool]]:
    """Return the optimizers that a model and its layers hold beside the compiled one (GANs, actors and critics).

    Each has its path, and whether a part of the model holds it. The optimizer of a compiled model within it is that
    model's. Independent.
    """
    seen = {id(getattr(model, "optimizer", None))}
    found = [(path, optimizer, False) for path, optimizer in _held_by(model, "", seen)]
    for path, layer in named_layers(model):
        if not is_of_keras(layer):
            is_compiled = getattr(layer, "_is_compiled", getattr(layer, "compiled", False))
            seen |= {id(getattr(layer, "optimizer", None))} if is_compiled else set()
            found += [(below, optimizer, True) for below, optimizer in _held_by(layer, path, seen)]
    return found


def _held_by(layer: Any, path: str, seen: set[int]) -> list[tuple[str, Any]]:
    attributes = sorted(vars(layer).items())
    found = [
        (join(path, name.strip("_")), value)
        for name, value in attributes
        if id(value) not in seen and is_optimizer(value)
    ]
    seen.update(id(value) for _, value in found)
    for name, value in sorted(attributes, key=lambda item: item[0].startswith("_")):
        if name not in _OF_TRACKING and not name.startswith("_self_"):
            found += _optimizers_in(value, join(path, name.strip("_")), seen)
    return found


def _optimizers_in(value: Any, path: str, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """Yield the optimizers in a list, tuple or dict, and in those within it, each once."""
    for key, item in _items(value):
        if id(item) in seen or not (is_optimizer(item) or isinstance(item, Mapping | list | tuple)):
            continue
        seen.add(id(item))
        if is_optimizer(item):
            yield join(path, str(key)), item
        else:
            yield from _optimizers_in(item, join(path, str(key)), seen)


def build(optimizer: Any, model: Any) -> None:
    """Create the optimizer's variables for the weights that a model trains, if it has not done so.

    An optimizer of Keras 3 is left as it is while all weights are frozen: it could never train any of them later.
    """
    if hasattr(optimizer, "_create_all_weights"):  # legacy optimizers, and their loss scaling
        optimizer._create_all_weights(_trained_by(model))
    elif not is_built(optimizer):
        variables = _trained_by(model)
        if variables or is_of_keras_2(model):
            optimizer.build(variables)


def build_as_saved(
    optimizer: Any, name: str, stored: Sequence[str], weights: Sequence[Weight], seen: set[int] | None = None
) -> None:
    """Create an optimizer's variables, and those of optimizers in it, for the weights that a checkpoint has slots for.

    Parameters
    ----------
    optimizer : keras.optimizers.Optimizer
        The optimizer; nothing is done with what is built.
    name : str
        What the names of its leaves begin with.
    stored : sequence of str
        The names that the checkpoint has.
    weights : sequence of Weight
        Those of the model.
    seen : set of int, optional
        Identities of optimizers that were visited.
    """
    seen = set() if seen is None else seen
    if id(optimizer) in seen:
        return
    seen.add(id(optimizer))
    for path, value in () if is_of_keras(optimizer) else _held_in(optimizer, join(name, HELD)):
        if is_optimizer(value):
            build_as_saved(value, path, stored, weights, seen)
    if is_built(optimizer):
        return
    start = f"{name}/"
    paths = {each[len(start) :].partition("/")[2] for each in stored if each.startswith(start)}  # behind the slot
    trained = [weight.variable for weight in weights if weight.path in paths]
    if trained and hasattr(optimizer, "_create_all_weights"):
        optimizer._create_all_weights(trained)
    elif trained:
        optimizer.build(trained)


def _trained_by(model: Any) -> list[Any]:
    """Return the weights that a training changes; for Keras 2.15 also those that were not frozen at `compile`.

    Its own training changes these, whatever was frozen or not since then.
    """
    compiled: Mapping[Any, bool] = getattr(model, "_compiled_trainable_state", {}) if is_of_keras_2(model) else {}
    present = {layer: layer._trainable for layer in model._flatten_layers()} if compiled else {}
    now = list(model.trainable_variables)
    if all(compiled.get(layer, flag) == flag for layer, flag in present.items()):
        return now
    try:  # not by the property, which sets that of the layers within a layer
        for layer, flag in present.items():
            layer._trainable = compiled.get(layer, flag)
        then = list(model.trainable_variables)
    finally:
        for layer, flag in present.items():
            layer._trainable = flag
    known = {id(variable) for variable in then}
    return [*then, *(variable for variable in now if id(variable) not in known)]


def optimizer_leaves(optimizer: Any, name: str, weights: Sequence[Weight] = ()) -> Iterator[TensorLeaf]:
    """Yield the leaves of a built optimizer.

    Parameters
    ----------
    optimizer : keras.optimizers.Optimizer
        The optimizer.
    name : str
        What the names begin with.
    weights : sequence of Weight
        The model's, to name slots after; without them slots are numbered in the order of the build.

    Raises
    ------
    StateError
        If the optimizer is not built.
    """
    inner = getattr(optimizer, "inner_optimizer", None)
    if inner is not None:
        yield from optimizer_leaves(inner, name, weights)
        yield from _loss_scale_leaves(optimizer, join(name, "loss_scale"))
        return
    if not is_built(optimizer):
        raise StateError(
            f"{name}: {type(optimizer).__name__} has no variables yet; call "
            "optimizer.build(model.trainable_variables) first, or pass the compiled model"
        )
    namer, seen = Namer(), set()
    for variable, path in [*_slots(optimizer, weights), *_singles(optimizer)]:
        if id(variable) not in seen:
            seen.add(id(variable))
            yield variable_leaf(variable, join(name, namer.take(path)))


def extra_leaves(
    optimizer: Any, name: str, weights: Sequence[Weight] = (), seen: set[int] | None = None
) -> Iterator[TensorLeaf]:
    """Yield the leaves of what a built optimizer of the program's own class holds beside its variables.

    That is variables in lists and dicts (accumulated gradients), generators, and other optimizers. Their names begin
    with ``NAME/held``.
    """
    seen = set() if seen is None else seen
    if id(optimizer) in seen or is_of_keras(optimizer) or hasattr(optimizer, "inner_optimizer"):
        return
    seen.add(id(optimizer))
    if not is_built(optimizer):
        return
    trained = _trained(optimizer, weights)
    paths = {key: weight.path for weight in weights for key in _keys_of(weight.variable)}
    own = {id(variable) for variable, _ in [*_slots(optimizer, weights), *_singles(optimizer)]}
    for path, value in _held_in(optimizer, join(name, HELD)):
        if is_optimizer(value) and is_built(value) and id(value) not in seen:
            yield from optimizer_leaves(value, path, weights)
            yield from extra_leaves(value, path, weights, seen)
        namer = Namer()
        for number, (key, item) in enumerate(_items(value)):
            if is_variable(item) and id(item) not in own:
                is_slot = isinstance(value, list | tuple) and len(value) == len(trained)
                known = trained[number].path if is_slot else paths.get(_key(key), key if _is_name(key) else str(number))
                yield variable_leaf(item, join(path, namer.take(known)))
    namer = Namer()
    for state in generators_in(optimizer):
        yield variable_leaf(state, join(join(name, HELD), namer.take(RNG_STATE)), "per-rank")


def _held_in(optimizer: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield the attributes that a program may have given an optimizer: path and value."""
    for attribute, value in sorted(vars(optimizer).items()):
        if attribute not in _NOT_SLOTS | _OF_TRACKING and not attribute.startswith("_self_"):
            yield join(name, attribute.strip("_")), value


def _keys_of(variable: Any) -> Iterator[Any]:
    """Yield what a program may use as the key of a weight in a dict; for references see `_key`."""
    yield id(variable)
    yield from (getattr(variable, name) for name in ("path", "name", "_unique_id") if hasattr(variable, name))


def _key(key: Any) -> Any:
    return id(key.deref()) if hasattr(key, "deref") else key


def _is_name(key: Any) -> bool:
    return isinstance(key, str) and name_problem(key) is None


def _items(value: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, Mapping):
        yield from value.items()
    elif isinstance(value, list | tuple):
        yield from enumerate(value)


def is_built(optimizer: Any) -> bool:
    """Return True if the optimizer has its variables; Keras 2.15, Keras 3 and legacy optimizers differ in names."""
    if not hasattr(optimizer, "built"):  # Keras 2.15 builds only the optimizer that is wrapped
        optimizer = getattr(optimizer, "inner_optimizer", None) or optimizer
    return any(getattr(optimizer, flag, False) for flag in ("_built", "built", "_hypers_created"))


def learning_rate_of(optimizer: Any) -> float | None:
    """Return the learning rate of an optimizer; ``None`` where a schedule computes it. Independent."""
    inner = getattr(optimizer, "inner_optimizer", None)
    if inner is not None:
        return learning_rate_of(inner)
    legacy: Mapping[str, Any] = getattr(optimizer, "_hyper", {})
    rate: Any = getattr(optimizer, "_learning_rate", legacy.get("learning_rate"))
    if is_variable(rate):
        return float(rate.numpy())
    return rate if isinstance(rate, float) else None


def own_variables(optimizer: Any) -> list[Any]:
    """Return what a built optimizer lists as its variables, in its order."""
    found = optimizer.variables
    return list(found() if callable(found) and not isinstance(found, list) else found)


def _slots(optimizer: Any, weights: Sequence[Weight]) -> Iterator[tuple[Any, str]]:
    own = {id(variable) for variable in own_variables(optimizer)}
    trained = _trained(optimizer, weights)
    for attribute, values in sorted(vars(optimizer).items()):
        if attribute in _NOT_SLOTS or not isinstance(values, list | tuple) or len(values) != len(trained):
            continue
        for variable, weight in zip(values[:], trained, strict=True):  # sliced: TensorFlow's own lists are slow
            if id(variable) in own:
                slot = _slot_name(variable.name, weight.keras_path, attribute, optimizer.name)
                yield variable, join(slot, weight.path)
    yield from _legacy_slots(optimizer, weights)


def _trained(optimizer: Any, weights: Sequence[Weight]) -> list[_Trained]:
    """Return the weights that the optimizer was built for, in the order of the build."""
    by_key = {key: weight for weight in weights for key in _keys(weight.variable)}
    tracked = getattr(optimizer, "_trainable_variables", None)
    if tracked is not None:  # Keras 3
        paths = [by_key[id(v)].path if id(v) in by_key else str(i) for i, v in enumerate(tracked)]
        return [_Trained(path, v.path.replace("/", "_")) for path, v in zip(paths, tracked, strict=True)]
    index: dict[str, int] = getattr(optimizer, "_index_dict", {})  # Keras 2.15
    found = [(by_key.get(key), str(index[key])) for key in sorted(index, key=index.__getitem__)]
    return [_Trained(w.path, w.variable.name.partition(":")[0]) if w else _Trained(number, "") for w, number in found]


def _keys(variable: Any) -> tuple[Any, Any]:
    return id(variable), getattr(variable, "_unique_id", None)


@remembered
def _slot_name(name: str, weight: str, attribute: str, scope: str) -> str:
    """Return what Keras calls a slot, from the names that it gave to the slot's variable and to the weight.

    It is ``m`` in Keras 2.15's ``m/conv2d/kernel:0``, or ``Adam/m/conv2d/kernel:0`` if ``fit`` built the
    optimizer, and ``momentum`` in Keras 3's ``conv2d_kernel_momentum``.
    """
    name = name.partition(":")[0]
    if "/" in name:
        if weight:
            return name.removesuffix(f"/{weight}").rpartition("/")[2]
        return name.removeprefix(f"{scope}/").partition("/")[0]
    prefix = f"{weight}_"
    return name[len(prefix) :] if name.startswith(prefix) else attribute.strip("_")


def _legacy_slots(optimizer: Any, weights: Sequence[Weight]) -> Iterator[tuple[Any, str]]:
    by_weight = getattr(optimizer, "_slots", {})
    paths = {key: weight.path for weight in weights for key in _keys(weight.variable)} if by_weight else {}
    for number, (key, slots) in enumerate(by_weight.items()):
        for slot, variable in slots.items():
            yield variable, join(slot, paths.get(key, str(number)))


def _singles(optimizer: Any) -> Iterator[tuple[Any, str]]:
    """Yield variables that belong to no weight: iteration, learning rate, hyperparameters."""
    attributes = {id(value): (value, key.strip("_")) for key, value in vars(optimizer).items() if is_variable(value)}
    found = {id(value): (value, "") for value in own_variables(optimizer)} | attributes
    for value, attribute in found.values():
        name = variable_name(value.name)
        yield value, attribute if attribute and name == "variable" else name
    for key, value in sorted(getattr(optimizer, "_hyper", {}).items()):
        if is_variable(value):  # apart, because "momentum" is also the name of a slot
            yield value, key if key == "learning_rate" else join("hyper", key)


def _loss_scale_leaves(optimizer: Any, name: str) -> Iterator[TensorLeaf]:
    """Yield a dynamic loss scale and its counter; a fixed scale has no variables."""
    held = getattr(getattr(optimizer, "_loss_scale", None), "_weights", None)
    own = list(held.values()) if held is not None else getattr(optimizer, "_variables", ())
    for variable in own:
        yield variable_leaf(variable, join(name, variable_name(variable.name)))
