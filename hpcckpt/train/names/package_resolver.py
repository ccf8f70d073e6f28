"""What of `hpcckpt.train` a configuration may name: datasets, batch processors, models, losses, train loops; no converters, no engine.

Only what packages publish counts: the names in ``__all__`` of a package, and of the packages named there.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from hpcckpt.train.config_errors import RefusedError, did_you_mean

HOME = "hpcckpt.train"
PACKAGES = ("batches", "datasets", "losses", "models")
LOOPS = ("CustomTrainLoop", "KerasTrainLoop", "TrainLoop")


def find(parts: Sequence[str]) -> Any:
    """Return the object at a path in `hpcckpt.train`.

    Raises
    ------
    RefusedError
        If there is none, or it is not open to configurations.
    """
    if parts[0] not in PACKAGES:
        return _loop(parts)
    thing: Any = importlib.import_module(HOME)
    for number, part in enumerate(parts):
        thing = _step(thing, part, is_last=number + 1 == len(parts))
    if isinstance(thing, ModuleType):
        raise RefusedError(f"{thing.__name__} is a module", f"name something in it: {', '.join(open_names(thing))}")
    return thing


def open_names(module: ModuleType) -> list[str]:
    """Return the open names of an hpcckpt package: objects and packages."""
    return [name for name in sorted(module.__all__) if _is_open(getattr(module, name))]


def elsewhere(name: str) -> str | None:
    """Return the path of something open that has this very name; ``None`` if there is none."""
    if name in LOOPS:
        return f"{HOME}.{name}"
    todo = [importlib.import_module(f"{HOME}.{package}") for package in PACKAGES]
    while todo:
        module = todo.pop(0)
        names = open_names(module)
        if name in names:
            return f"{module.__name__}.{name}"
        todo += [below for below in (getattr(module, each) for each in names) if isinstance(below, ModuleType)]
    return None


def _step(module: ModuleType, name: str, *, is_last: bool) -> Any:
    is_published = name in getattr(module, "__all__", ())
    found = getattr(module, name) if is_published else None
    if found is None:
        other = elsewhere(name)
        remedy = f"did you mean {other!r}?" if other else did_you_mean(name, _inner_names(module), "open there are")
        raise RefusedError(f"there is no {name!r} in {module.__name__}", remedy)
    if not _is_open(found):
        text = f"{module.__name__}.{name} is not open to configurations"
        raise RefusedError(text, f"open there are {', '.join(_inner_names(module)) or 'none'}")
    if not is_last and not isinstance(found, ModuleType):
        text = f"{module.__name__}.{name} is no package, and what belongs to it cannot be named"
        raise RefusedError(text, "name it alone")
    return found


def _inner_names(module: ModuleType) -> list[str]:
    return list(PACKAGES) if module.__name__ == HOME else open_names(module)


def _is_open(thing: Any) -> bool:
    """Return True if a public object may be used in configurations."""
    home = thing.__name__ if isinstance(thing, ModuleType) else str(getattr(thing, "__module__", ""))
    package = home.removeprefix(f"{HOME}.").split(".")[0]
    if not home.startswith(f"{HOME}.") or package not in PACKAGES:
        return False
    if package == "datasets" and not isinstance(thing, ModuleType):
        return inspect.isfunction(thing) and thing.__name__.startswith("from_")
    return isinstance(thing, ModuleType | type) or inspect.isfunction(thing)


def _loop(parts: Sequence[str]) -> Any:
    name, package = parts[0], importlib.import_module(HOME)
    if name in LOOPS and len(parts) == 1:
        return getattr(package, name)
    if name in LOOPS:
        raise RefusedError(f"what belongs to {HOME}.{name} cannot be named", "name it alone")
    if name in package.__all__:
        text = f"{HOME}.{name} is not open to configurations"
        raise RefusedError(text, f"open there are {', '.join([*LOOPS, *PACKAGES])}")
    other = elsewhere(name)
    remedy = f"did you mean {other!r}?" if other else did_you_mean(name, [*LOOPS, *PACKAGES], "open there are")
    raise RefusedError(f"there is no {name!r} in {HOME}", remedy)
