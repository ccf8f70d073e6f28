"""The parts of Keras that a configuration may name: parts of models and trainings, nothing that runs, loads or fetches.

The list has the allowed names by namespace: classes below a base class, or single names. Everything else is refused, so
a new version of Keras allows nothing new. Some subclasses of listed base classes carry code or act by themselves, and
are refused by name, also as a base class and in any namespace.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from hpcckpt.errors import ConfigError
from hpcckpt.train.config_errors import RefusedError, did_you_mean, nearest

HOMES = ("keras", "tf_keras")
"""Where what Keras has is defined: ``tf.keras`` is the second with ``TF_USE_LEGACY_KERAS=1``."""


@dataclass(frozen=True, slots=True)
class Namespace:
    """What is open in a namespace of ``tf.keras``.

    Attributes
    ----------
    bases : tuple of str
        Classes below one of these are, by their paths in ``tf.keras``.
    names : tuple of str
        These are.
    builds_models : bool
        Functions with a capital are: they build a model.
    hands_over : bool
        Functions may be handed over, not called: ``{"@": …}``.
    """

    bases: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    builds_models: bool = False
    hands_over: bool = False


_LAYERS = Namespace(("layers.Layer",), ("Input", "InputSpec"))
_OPTIMIZERS = Namespace(("optimizers.Optimizer", "optimizers.legacy.Optimizer"), ("LossScaleOptimizer",))
APPLICATIONS = Namespace(builds_models=True)
NAMESPACES: Mapping[str, Namespace] = {
    "": Namespace(names=("Sequential", "Input")),
    "activations": Namespace(hands_over=True),
    "applications": APPLICATIONS,
    "callbacks": Namespace(
        names=(
            "CSVLogger", "EarlyStopping", "ModelCheckpoint", "ProgbarLogger", "ReduceLROnPlateau", "SwapEMAWeights",
            "TensorBoard", "TerminateOnNaN",
        )
    ),
    "constraints": Namespace(("constraints.Constraint",)),
    "initializers": Namespace(("initializers.Initializer",)),
    "layers": _LAYERS,
    "layers.experimental": _LAYERS,
    "layers.experimental.preprocessing": _LAYERS,
    "losses": Namespace(("losses.Loss",), hands_over=True),
    "metrics": Namespace(("metrics.Metric",), hands_over=True),
    "mixed_precision": Namespace(names=("LossScaleOptimizer", "Policy", "DTypePolicy")),
    "models": Namespace(names=("Sequential",)),
    "optimizers": _OPTIMIZERS,
    "optimizers.experimental": _OPTIMIZERS,
    "optimizers.legacy": _OPTIMIZERS,
    "optimizers.schedules": Namespace(("optimizers.schedules.LearningRateSchedule",)),
    "random": Namespace(names=("SeedGenerator",)),
    "regularizers": Namespace(("regularizers.Regularizer",), ("l1_l2",)),
}  # fmt: skip

OWN = "write a function or class of your own around it, exported by hpcckpt.train.export_config"
CLOSED: Mapping[str, tuple[str, str]] = {
    "backend": ("it reaches into Keras itself", OWN),
    "datasets": ("it downloads", "use hpcckpt.train.datasets, or a function of your own, exported"),
    "models": ("it loads and saves models, which may carry code", "name the model's class"),
    "saving": ("it loads and saves models, which may carry code", "name the model's class"),
    "utils": ("it downloads, writes files, and builds any object", OWN),
}
_CODE = "it carries code, and a configuration runs none"
CARRIERS: Mapping[str, tuple[str, str]] = {
    "BackupAndRestore": ("it removes a directory when training ends", "use the key 'checkpoint'"),
    "FlaxLayer": (_CODE, "write a layer of your own, exported by hpcckpt.train.export_config"),
    "JaxLayer": (_CODE, "write a layer of your own, exported by hpcckpt.train.export_config"),
    "Lambda": (_CODE, "write a layer of your own, exported by hpcckpt.train.export_config"),
    "LambdaCallback": (_CODE, "write a callback of your own, exported by hpcckpt.train.export_config"),
    "LearningRateScheduler": (_CODE, "use one of tf.keras.optimizers.schedules as learning_rate"),
    "OrbaxCheckpoint": ("it removes older files", "use the key 'checkpoint'"),
    "RemoteMonitor": ("it sends data to any address", "use tf.keras.callbacks.CSVLogger"),
    "TFSMLayer": ("it loads a saved model, which may carry code", "name the model's class"),
    "TorchModuleWrapper": (_CODE, "write a layer of your own, exported by hpcckpt.train.export_config"),
}
_NEVER = ("deserialize", "get", "serialize")
_TABLES = (".csv", ".tsv", ".txt", ".log")


# -- looking up -------------------------------------------------------------------------------------


def find(parts: Sequence[str], *, is_called: bool) -> Any:
    """Return the object at a path in ``tf.keras``.

    Raises
    ------
    RefusedError
        If there is none, or it is not open to configurations.
    """
    space = _walk(parts[:-1])
    name, path = parts[-1], _path(space)
    thing = _get(space, name)
    if thing is None or (isinstance(thing, ModuleType) and not _is_of_keras(thing.__name__)):
        raise RefusedError(f"there is no {name!r} in {path}", _where_else(name, space))
    if isinstance(thing, ModuleType):
        _check_open([*space, name])
        raise RefusedError(f"{_path([*space, name])} is a module", f"name something in it, such as {_example(thing)}")
    _check_carrier(thing, f"{path}.{name}")
    if is_open(space, name, thing, is_called=is_called):
        return thing
    raise _refusal(space, name, thing, is_called=is_called)


def is_open(space: Sequence[str], name: str, thing: Any, *, is_called: bool) -> bool:
    """Return True if a configuration may call, or pass, an object of a namespace."""
    rules = _rules(space)
    if not _is_of_keras(str(getattr(thing, "__module__", ""))) or name in _NEVER or name.startswith("_"):
        return False
    if inspect.isclass(thing):
        if any(base.__name__ in CARRIERS for base in thing.__mro__):
            return False
        return name in rules.names or issubclass(thing, tuple(_bases(rules)))
    if not inspect.isroutine(thing):
        return False
    if not is_called:
        return rules.hands_over
    return name in rules.names or (rules.builds_models and name[:1].isupper())


def open_names(space: Sequence[str], *, is_called: bool = True) -> list[str]:
    """Return what is open in a namespace; nothing if this Keras has none of this name."""
    names = sorted({name for module in _modules(space) for name in dir(module)})
    return [name for name in names if is_open(space, name, _get(space, name), is_called=is_called)]


def elsewhere(name: str) -> str | None:
    """Return the path of something open that has this very name; ``None`` if there is none."""
    for space in sorted(NAMESPACES, key=lambda space: (space.count("."), space)):
        parts = space.split(".") if space else []
        if name in open_names(parts):
            return f"{_path(parts)}.{name}"
    return None


def argument_problem(thing: Any, kwargs: Mapping[str, Any]) -> tuple[str, str, str] | None:
    """Return argument, text and remedy where an argument would make a callback write what a shell may run."""
    names = [base.__name__ for base in getattr(thing, "__mro__", ())]
    filename = kwargs.get("filename")
    if "CSVLogger" in names and isinstance(filename, str) and not filename.endswith(_TABLES):
        return "filename", f"{filename!r} is no name of a table", f"let it end with one of {', '.join(_TABLES)}"
    return None


def base(path: str) -> Any:
    """Return a class of Keras by its path in ``tf.keras``; ``None`` where this Keras has none there."""
    *space, name = path.split(".")
    found = _get(space, name)
    return found if inspect.isclass(found) else None


def keras() -> Any:
    """Import TensorFlow and return its Keras.

    Raises
    ------
    ConfigError
        If it is not installed.
    """
    try:
        return importlib.import_module("tensorflow").keras
    except ImportError as error:
        raise ConfigError(f"training needs TensorFlow ({error}): pip install 'hpcckpt[tf]'") from error


# -- walking ---------------------------------------------------------------------------------------


def _walk(space: Sequence[str]) -> list[str]:
    """Return a namespace if it is in the list, and in this Keras."""
    done: list[str] = []
    for part in space:
        _check_open([*done, part], is_last=len(done) + 1 == len(space))
        done.append(part)
    if not _modules(done):
        raise RefusedError(f"this version of Keras has no {_path(done)}", "name another one")
    return done


def _check_open(space: Sequence[str], *, is_last: bool = True) -> None:
    """Raise unless a namespace is in the list; the parents of one that is are in it too."""
    path, *parent = ".".join(space), *space[:-1]
    name = space[-1]
    if path in NAMESPACES or (space[0] == "applications" and len(space) == 2 and _modules(space)):
        return
    if inspect.isclass(_get(parent, name)):
        raise RefusedError(f"{_path(space)} is a class, and what belongs to it cannot be named", "name the class alone")
    if path in CLOSED:
        reason, remedy = CLOSED[path]
        raise RefusedError(f"{_path(space)} is not open to configurations: {reason}", remedy)
    prefix = f"{'.'.join(parent)}." if parent else ""
    known = {each[len(prefix) :].split(".")[0] for each in NAMESPACES if each.startswith(prefix) and each != prefix}
    if isinstance(_get(parent, name), ModuleType):
        names = ", ".join(sorted(known - {""}))
        raise RefusedError(f"{_path(space)} is not open to configurations", f"open there are {names or 'none'}")
    remedy = did_you_mean(name, known - {""}, f"in {_path(parent)} are") if is_last or known else ""
    raise RefusedError(f"there is no {name!r} in {_path(parent)}", remedy)


def _modules(space: Sequence[str]) -> list[Any]:
    """Return a namespace of the list, in ``tf.keras`` and in the underlying Keras, which may have more names."""
    top = keras()
    is_old_keras = str(top.layers.__name__).split(".")[0] != HOMES[0]  # installed beside another one
    found = [top] if is_old_keras else [top, importlib.import_module(HOMES[0])]
    for part in space:
        found = [getattr(module, part, None) for module in found]
        found = [each for each in found if isinstance(each, ModuleType) and _is_of_keras(each.__name__)]
    return found


def _get(space: Sequence[str], name: str) -> Any:
    found = (getattr(module, name, None) for module in _modules(space))
    return next((each for each in found if each is not None), None)


def _is_of_keras(module: str) -> bool:
    return module.split(".", maxsplit=1)[0] in HOMES


def _rules(space: Sequence[str]) -> Namespace:
    return APPLICATIONS if space and space[0] == "applications" else NAMESPACES[".".join(space)]


def _bases(rules: Namespace) -> Iterator[Any]:
    return (found for found in map(base, rules.bases) if found is not None)


def _path(space: Sequence[str]) -> str:
    return ".".join(["tf.keras", *space])


# -- refusing --------------------------------------------------------------------------------------


def _check_carrier(thing: Any, path: str) -> None:
    for each in getattr(thing, "__mro__", ()):
        if each.__name__ in CARRIERS and _is_of_keras(each.__module__):
            reason, remedy = CARRIERS[each.__name__]
            raise RefusedError(f"{path} is not open to configurations: {reason}", remedy)


def _refusal(space: Sequence[str], name: str, thing: Any, *, is_called: bool) -> RefusedError:
    path = _path([*space, name])
    home = str(getattr(thing, "__module__", ""))
    if not is_called:
        return RefusedError(f"{path} is nothing to hand over", f'call it: {{"{path}": {{}}}}')
    if not _is_of_keras(home) and home:
        return RefusedError(f"{path} is not Keras' own but {home}'s", OWN)
    if is_open(space, name, thing, is_called=False):
        remedy = f'hand it over: {{"@": "{path}"}}'
        other = nearest(name.replace("_", ""), open_names(space))
        if other:
            remedy += f', or write {{"{_path([*space, other])}": {{}}}}'
        return RefusedError(f"{path} is a function that is called with data", remedy)
    top = ".".join(space)
    reason, remedy = CLOSED.get(top, ("it is no part of a model or a training", OWN))
    return RefusedError(f"{path} is not open to configurations: {reason}", remedy)


def _where_else(name: str, space: Sequence[str]) -> str:
    other = elsewhere(name)
    if other is not None:
        return f"did you mean {other!r}?"
    known = {*open_names(space), *open_names(space, is_called=False)}
    prefix = ".".join(space)
    below = {each.removeprefix(prefix).lstrip(".").split(".")[0] for each in NAMESPACES if each.startswith(prefix)}
    return did_you_mean(name, known | below - {""}, "there are")


def _example(module: ModuleType) -> str:
    space = module.__name__.split(".keras.")[-1].split(".")
    rules = NAMESPACES.get(".".join(space))
    names = open_names(space) if rules is not None else []
    return f"{_path([*space, names[0]])}" if names else "a class"
