"""The weights of a Keras model or layer, by names that do not depend on what was built before.

Each layer's own weights come first, then its sublayers in the order in which Keras tracks them.  A
layer or weight that is reached twice (shared layers, tied weights) is named where it is met first.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hpcckpt.core.tensors import Kind
from hpcckpt.errors import StateError
from hpcckpt.keras.model.naming import Namer, stem, variable_name
from hpcckpt.state.tree import join

RNG_STATE = "seed_generator_state"
"""Name of a layer's random state, Keras 3's own."""
_KERAS = ("keras", "tf_keras")
_MAX_DEPTH = 4
"""How deep in containers generators are looked for."""
_MAX_ITEMS = 1000
"""Among how many items of each container: a layer may have a list of a million numbers."""


class Weight(NamedTuple):
    """A variable of a model: its path, how ranks share it, and whether checkpoints of older versions may lack it."""

    path: str
    variable: Any
    kind: Kind
    is_optional: bool = False


@dataclass(slots=True)
class _Walk:
    """What one walk has visited so far."""

    weights: list[Weight] = field(default_factory=list)
    seen: set[int] = field(default_factory=set)
    unbuilt: list[str] = field(default_factory=list)
    without_weights: list[str] = field(default_factory=list)

    def is_new(self, obj: Any) -> bool:
        """Return True if `obj` is visited for the first time."""
        if id(obj) in self.seen:
            return False
        self.seen.add(id(obj))
        return True


def is_layer(obj: Any) -> bool:
    """Return True if `obj` is a Keras layer or model."""
    return all(hasattr(type(obj), name) for name in ("_flatten_layers", "weights", "add_weight"))


def named_weights(model: Any) -> list[Weight]:
    """Return all weights and random states of a model or layer, each with its path in it.

    Raises
    ------
    StateError
        If the model or a layer of it has no weights yet because it was not built.
    """
    walk = _visited(model)
    if walk.without_weights and not (model.built and walk.weights):  # of a built model, layers that it never calls
        names = ", ".join(walk.without_weights[:10])
        raise StateError(
            f"these layers have no weights yet: {names}; build the model first: give it an Input, call "
            "model.build(input_shape), or call it once on a batch"
        )
    _visit_others(model, walk)
    return walk.weights


def unbuilt_layers(model: Any) -> list[str]:
    """Return the paths of the layers that were not built yet, and may get weights by that."""
    return _visited(model).unbuilt


def _visited(model: Any) -> _Walk:
    walk = _Walk()
    _visit_layer(model, "", walk)
    return walk


def named_layers(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield the layers within a model, each once, with its path in it; the order is that of their weights."""
    yield from _layers_below(model, "", _Walk())


def _layers_below(layer: Any, path: str, walk: _Walk) -> Iterator[tuple[str, Any]]:
    namer = Namer()
    for child in layer._flatten_layers(include_self=False, recursive=False):
        name = join(path, namer.take(stem(child.name, type(child).__name__)))
        if walk.is_new(child):
            yield name, child
            yield from _layers_below(child, name, walk)


def _visit_layer(layer: Any, path: str, walk: _Walk) -> None:
    for metric in getattr(layer, "_metrics", ()):
        walk.seen.update(map(id, metric.variables))
    if not layer.built and _may_have_weights(type(layer)):
        walk.unbuilt.append(path or layer.name)
        if not _only_holds_layers(layer):
            walk.without_weights.append(path or layer.name)
    namer = Namer()
    _visit_own_weights(layer, path, namer, walk)
    for child in layer._flatten_layers(include_self=False, recursive=False):
        name = namer.take(stem(child.name, type(child).__name__))
        if walk.is_new(child):
            _visit_layer(child, join(path, name), walk)


def _visit_own_weights(layer: Any, path: str, namer: Namer, walk: _Walk) -> None:
    for kind, variables in own_weights(layer).items():
        for variable in variables:
            if hasattr(variable, "get_tensors"):  # Keras 2.15 lists a vocabulary among weights
                _check_handler(layer, path, variable)
                walk.is_new(variable)
            elif walk.is_new(variable):
                walk.weights.append(Weight(join(path, namer.take(variable_name(variable.name))), variable, kind))
    for variable in _random_states(layer):
        if walk.is_new(variable):
            walk.weights.append(Weight(join(path, namer.take(RNG_STATE)), variable, "per-rank"))
    for variable in () if path and is_of_keras(layer) else generators_in(layer):
        if walk.is_new(variable):
            walk.weights.append(Weight(join(path, namer.take(RNG_STATE)), variable, "per-rank", is_optional=True))


def _check_handler(layer: Any, path: str, handler: Any) -> None:
    """Raise `StateError` for what a layer lists among its weights and is neither a variable nor a vocabulary."""
    if type(handler).__name__ != "VocabWeightHandler":
        raise StateError(
            f"layer {path or layer.name} has a {type(handler).__name__} among its weights, which is no variable and "
            "cannot be saved: keep its values in variables"
        )


def own_weights(layer: Any) -> dict[Kind, Sequence[Any]]:
    """Return the weights that a layer itself has made, by how ranks share them; without kinds that it has none of."""
    found: dict[Kind, Sequence[Any]] = {
        "replicated": _tracked(layer, "_trainable_variables", "_trainable_weights"),
        "root": _tracked(layer, "_non_trainable_variables", "_non_trainable_weights"),
    }
    return {kind: variables for kind, variables in found.items() if variables}


def _tracked(layer: Any, name: str, old_name: str) -> Sequence[Any]:
    """Return the weights that the layer itself made; unlike ``trainable_weights``, freezing does not move them."""
    found: Sequence[Any] = getattr(layer, name, ()) or getattr(layer, old_name, ())
    return found[:]  # a plain list: TensorFlow's own kind is slow to go through


def _random_states(layer: Any) -> list[Any]:
    """Return the layer's generator states: Keras 3's seed generators, or the generator that 2.15 hides."""
    states = [generator.state for generator in getattr(layer, "_seed_generators", ())]
    hidden = getattr(getattr(layer, "_random_generator", None), "_generator", None)
    return states + ([hidden.state] if hidden is not None else [])


def is_of_keras(obj: Any) -> bool:
    """Return True for a layer or optimizer of a class of Keras' own: a program puts nothing into its attributes.

    It does into those of models. The classes that Horovod makes on the fly derive from those of Keras or the program.
    """
    modules = (cls.__module__.partition(".")[0] for cls in type(obj).__mro__)
    return next(name for name in modules if name != "horovod") in _KERAS and not hasattr(type(obj), "compile")


def generators_in(obj: Any) -> Iterator[Any]:
    """Yield the states of TensorFlow's generators that the program gave an object, by the names of the attributes."""
    generator = getattr(sys.modules.get("tensorflow.python.ops.stateful_random_ops"), "Generator", None)
    if generator is None:
        return
    for name, value in sorted(vars(obj).items()):
        if not name.startswith("_self_"):
            yield from (each.state for each in _items_in(value, _MAX_DEPTH) if isinstance(each, generator))


def _items_in(value: Any, depth: int) -> Iterator[Any]:
    """Yield a value, or what is in it if it is a container or a ``tf.Module``, but not in layers."""
    items: Iterable[Any] = (value,)
    if isinstance(value, Mapping | list | tuple):
        items = value.values() if isinstance(value, Mapping) else value
    elif hasattr(type(value), "with_name_scope") and not is_layer(value):
        items = (item for name, item in sorted(vars(value).items()) if not name.startswith("_self_"))
    else:
        yield value
        return
    for item in itertools.islice(items, _MAX_ITEMS) if depth else ():
        yield from _items_in(item, depth - 1)


def _visit_others(model: Any, walk: _Walk) -> None:
    """Take in weights that Keras lists but no layer owns (those of a plain ``tf.Module`` in a layer), by position."""
    for number, variable in enumerate([v for v in model.weights if walk.is_new(v)]):
        walk.weights.append(Weight(f"other/{number}", variable, "replicated" if variable.trainable else "root"))


def is_of_keras_2(model: Any) -> bool:
    """Return True for a model or layer of Keras 2.15, which lists what is frozen behind all else."""
    return hasattr(model, "_set_trainable_state")


def _may_have_weights(kind: type[Any]) -> bool:
    """Return True if a class of layers overrides ``build``, as layers with weights do."""
    maker = _class_with_build(kind)
    return maker is not None and maker.__name__ != "Layer"


def _only_holds_layers(layer: Any) -> bool:
    """Return True for a model that only its own ``train_step`` uses, not ``call`` (GANs): Keras never builds it."""
    maker = _class_with_build(type(layer))
    is_model = maker is not None and maker.__name__ == "Model"
    return is_model and any(True for _ in layer._flatten_layers(include_self=False, recursive=False))


def _class_with_build(kind: type[Any]) -> type[Any] | None:
    return next((cls for cls in kind.__mro__ if "build" in vars(cls)), None)
