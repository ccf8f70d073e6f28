"""All factories of all cycles looked up and their arguments compared with what is taken, without calling anything."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from hpcckpt.train.config.factories import Factory, FactoryEntry
from hpcckpt.train.config.signatures import call_problems
from hpcckpt.train.config_errors import ConfigProblem, TrainConfigError, did_you_mean, shown
from hpcckpt.train.names import keras_resolver
from hpcckpt.train.names.export_config import exported

if TYPE_CHECKING:
    from hpcckpt.train.names.allow_list import Catalogue

_KINDS = {
    "optimizer": "optimizers.Optimizer",
    "optimizer ": "optimizers.legacy.Optimizer",
    "schedule": "optimizers.schedules.LearningRateSchedule",
    "loss": "losses.Loss",
    "metric": "metrics.Metric",
    "callback": "callbacks.Callback",
    "initializer": "initializers.Initializer",
    "layer": "layers.Layer",  # metrics of Keras 2 are layers too
}
_WANTED = {"model": "model", "optimizer": "optimizer", "loss": "loss", "metrics": "metric", "train_loop": "train loop"}
_PLACES = {
    "model": "hpcckpt.train.models or tf.keras.applications",
    "optimizer": "tf.keras.optimizers",
    "loss": "tf.keras.losses",
    "metrics": "tf.keras.metrics",
    "train_loop": "hpcckpt.train: KerasTrainLoop, CustomTrainLoop",
    "datasets": "hpcckpt.train.datasets, or a function of your own",
}
_CUSTOM_LOOP = ("hpcckpt.train.loop.custom_loop", "CustomTrainLoop")
_KERAS_SHORTHANDS = {"accuracy", "acc", "crossentropy", "ce"}


def check_parts(parts: Iterable[FactoryEntry], catalogue: Catalogue) -> list[ConfigProblem]:
    """Return what is wrong with parts of cycles: names and arguments. Independent."""
    return list(dict.fromkeys(problem for part in parts for problem in _part_problems(part, catalogue)))


def _part_problems(part: FactoryEntry, catalogue: Catalogue) -> Iterator[ConfigProblem]:
    if isinstance(part.value, Factory):
        yield from _factory_problems(part.value, catalogue)
        yield from _kind_problems(part.key, part.value, catalogue)
    else:
        yield from _name_problems(part.key, part.value, part.place)


def _factory_problems(factory: Factory, catalogue: Catalogue) -> Iterator[ConfigProblem]:
    try:
        target = catalogue.target_of(factory)
    except TrainConfigError as error:
        yield from error.problems
    else:
        if factory.is_called:
            yield from call_problems(target, factory.name, factory.kwargs, factory.place)
    for argument in _factories_in(factory.kwargs):
        yield from _factory_problems(argument, catalogue)


def _factories_in(value: Any) -> Iterator[Factory]:
    if isinstance(value, Factory):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _factories_in(item)
    elif isinstance(value, list):
        for item in value:
            yield from _factories_in(item)


def _kind_problems(key: str, factory: Factory, catalogue: Catalogue) -> Iterator[ConfigProblem]:
    """Say so if a part of a cycle is something else of Keras, a layer as optimizer; or a class that is not called."""
    try:
        target = catalogue.target_of(factory)
    except TrainConfigError:
        return
    if isinstance(target, type) and not factory.is_called:
        text = f"{factory.name} is a class, and is only named here"
        yield ConfigProblem(factory.place, text, f'write {{"{factory.name}": {{}}}}')
        return
    kind = kind_of_class(target)
    if kind is not None and kind != _WANTED.get(key):
        wanted = _WANTED.get(key, "dataset")
        article = "an" if kind[0] in "aeio" else "a"
        text = f"{factory.name} is {article} {kind}, no {wanted}"
        yield ConfigProblem(factory.place, text, f"write one of {_PLACES[key]}")
    elif kind == "train loop" and _has_no_step(target):
        remedy = "name ktf.train.KerasTrainLoop, or an exported subclass that has one"
        yield ConfigProblem(factory.place, f"{factory.name} has no train_step", remedy)


def _has_no_step(loop: type) -> bool:
    """Return True for `CustomTrainLoop` itself, and for a subclass that does not override its step."""
    owner = next((each for each in loop.__mro__ if "train_step" in vars(each)), None)
    return owner is not None and (owner.__module__, owner.__name__) == _CUSTOM_LOOP


def kind_of_class(target: Any) -> str | None:
    """Return which part of a training a class is; ``None`` for functions, and if it is unknown."""
    if not isinstance(target, type):
        return None
    names = {each.__name__ for each in target.__mro__ if each.__module__.startswith("hpcckpt.train.")}
    if "TrainLoop" in names:
        return "train loop"
    found = next((kind.strip() for kind, path in _KINDS.items() if _is_below(target, path)), None)
    is_model = found == "layer" and _is_below(target, "Model")
    return "model" if is_model else found


def _is_below(target: type, path: str) -> bool:
    base = keras_resolver.base(path)
    return base is not None and issubclass(target, base)


def _name_problems(key: str, name: str, place: str) -> Iterator[ConfigProblem]:
    """Say so if Keras has no loss or metric of a name; keys other than these two hold no names."""
    space = "losses" if key == "loss" else "metrics"
    known = [*keras_resolver.open_names([space]), *keras_resolver.open_names([space], is_called=False)]
    if name in known or (key == "metrics" and name in _KERAS_SHORTHANDS) or _is_known(space, name):
        return
    text = f"Keras has no {_WANTED[key]} {shown(name)!r}"
    if name in exported():
        yield ConfigProblem(
            place, text, f'what you exported is written {{"{name}": {{}}}}, or {{"@": "{name}"}} uncalled'
        )
    else:
        yield ConfigProblem(place, text, did_you_mean(name, known, "there are"))


def _is_known(space: str, name: str) -> bool:
    """Return True if Keras finds a built-in or registered object by this name."""
    if name in {"get", "serialize", "deserialize"} or not name.isidentifier():
        return False
    try:
        found = getattr(keras_resolver.keras(), space).get(name)
    except Exception:  # noqa: BLE001 - whatever Keras says of a name, it does not know it
        return False
    base = keras_resolver.base(f"{space}.{'Loss' if space == 'losses' else 'Metric'}")
    return inspect.isfunction(found) or (base is not None and isinstance(found, base))
