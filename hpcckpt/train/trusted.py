"""Roots that whoever starts a training allows: what stands below them is trusted, if it is defined there too."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import Any

from hpcckpt.train import keras_names
from hpcckpt.train.aliases import OPEN_IT, PUBLIC, canonical, public_names
from hpcckpt.train.problems import ConfigError, Problem, did_you_mean, shown
from hpcckpt.train.refusing import RefusedError

FAMILY = ("tensorflow", "keras", "tf_keras")


def roots(allow: Iterable[str]) -> list[tuple[str, ...]]:
    """Return the parts of the roots' names, the longest first.

    Raises
    ------
    ConfigError
        If one is no name.
    """
    for name in allow:
        if not all(PUBLIC.fullmatch(part) for part in name.split(".")):
            raise ConfigError.of(
                [Problem(f"--allow {shown(name)}", "is no dotted path of public names", "give a package: --allow mine")]
            )
    return sorted({canonical(name) for name in allow}, key=lambda parts: (-len(parts), parts))


def imported(parts: tuple[str, ...]) -> Any:
    """Import the package that a trusted root stands in.

    Raises
    ------
    ConfigError
        If it cannot be imported.
    """
    try:
        return _top(parts[0]) if parts[0] in FAMILY else importlib.import_module(parts[0])
    except Exception as error:
        name = ".".join(parts)
        text = f"cannot be imported: {type(error).__name__}: {error}"
        remedy = "install it"
        if isinstance(error, ModuleNotFoundError) and error.name == parts[0]:
            text, remedy = "there is no such module", "install it, or put its directory into PYTHONPATH"
        raise ConfigError.of([Problem(f"--allow {name}", text, remedy)]) from error


def _top(name: str) -> Any:
    return keras_names.keras() if name == "keras" else importlib.import_module(name)


def walk(top: Any, root: Sequence[str], parts: Sequence[str]) -> Any:
    """Return what stands below a trusted root, if it is defined in the same package.

    Raises
    ------
    RefusedError
        If there is nothing, or it is defined elsewhere.
    """
    thing, done = top, [parts[0]]
    for part in parts[1:]:
        thing = _step(thing, part, done)
        done.append(part)
    home = thing.__name__ if isinstance(thing, ModuleType) else str(getattr(thing, "__module__", None) or "")
    path = ".".join(parts)
    if not _is_same_package(home, root[0]):
        raise RefusedError(f"{path} is not defined there but in {home or 'nothing'}", OPEN_IT.format(home or path))
    if isinstance(thing, ModuleType) or not callable(thing):
        raise RefusedError(f"{path} is no class or function", "name something in it" + _some_of(thing))
    return thing


def _step(thing: Any, part: str, done: Sequence[str]) -> Any:
    path = ".".join(done)
    found = getattr(thing, part, None)
    if found is None and isinstance(thing, ModuleType) and hasattr(thing, "__path__"):
        found = _submodule(thing.__name__, part)
    if found is None:
        raise RefusedError(f"there is no {part!r} in {path}", did_you_mean(part, public_names(thing), "there are"))
    if isinstance(found, ModuleType) and not _is_same_package(found.__name__, done[0]):
        raise RefusedError(f"{path}.{part} is the module {found.__name__}", OPEN_IT.format(found.__name__))
    return found


def _submodule(package: str, name: str) -> Any:
    try:
        return importlib.import_module(f"{package}.{name}")
    except ModuleNotFoundError as error:
        if error.name == f"{package}.{name}":
            return None
        raise RefusedError(f"{package}.{name} cannot be imported: {error}", "install what it needs") from error
    except Exception as error:
        text = f"{package}.{name} cannot be imported: {type(error).__name__}: {error}"
        raise RefusedError(text, "correct it") from error


def _is_same_package(module: str, root: str) -> bool:
    top = module.split(".", maxsplit=1)[0]
    return top in FAMILY if root in FAMILY else top == root


def _some_of(thing: Any) -> str:
    names = (
        [n for n in public_names(thing) if callable(getattr(thing, n, None))] if isinstance(thing, ModuleType) else []
    )
    return f": {', '.join(names[:10])}" if names else ""
