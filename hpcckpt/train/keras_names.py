"""Names looked up in the list of what of Keras is open to configurations, `hpcckpt.train.keras_open`."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

from hpcckpt.errors import ConfigError
from hpcckpt.train.keras_open import APPLICATIONS, CARRIERS, CLOSED, HOMES, NAMESPACES, OWN, Namespace
from hpcckpt.train.problems import did_you_mean, nearest
from hpcckpt.train.refusing import RefusedError

_NEVER = ("deserialize", "get", "serialize")
_TABLES = (".csv", ".tsv", ".txt", ".log")


def find(parts: Sequence[str], *, is_called: bool) -> Any:
    """Return what stands at a path in ``tf.keras``.

    Raises
    ------
    RefusedError
        If nothing does, or it is not open to configurations.
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
    """Say whether something in a namespace may be called, or handed over, by a configuration."""
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
    """Return a namespace of the list, in ``tf.keras`` and in the Keras behind it, which may have more names."""
    top = keras()
    found = [top] if _is_alone(top) else [top, importlib.import_module(HOMES[0])]
    for part in space:
        found = [getattr(module, part, None) for module in found]
        found = [each for each in found if isinstance(each, ModuleType) and _is_of_keras(each.__name__)]
    return found


def _is_alone(top: Any) -> bool:
    """Say whether ``tf.keras`` is the old Keras, installed beside another one."""
    return str(top.layers.__name__).split(".")[0] != HOMES[0]


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
        return RefusedError(f"{path} is a function that is called with data", f"{remedy}" + _or(other, space))
    top = ".".join(space)
    reason, remedy = CLOSED.get(top, ("it is no part of a model or a training", OWN))
    return RefusedError(f"{path} is not open to configurations: {reason}", remedy)


def _or(name: str | None, space: Sequence[str]) -> str:
    return f', or write {{"{_path([*space, name])}": {{}}}}' if name else ""


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
