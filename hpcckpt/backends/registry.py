"""Which backends there are: the built-in ones and those of the entry-point group ``hpcckpt.backends``.

Discovery is sorted and imports nothing; a backend is imported when it is used, so a broken one never
breaks the tool.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import sys
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcckpt.errors import BackendConflictError, BackendError, BackendNotFoundError

if TYPE_CHECKING:
    from hpcckpt.backends.base import Backend

GROUP = "hpcckpt.backends"
_BUILT_IN = {"rankfile": "hpcckpt.backends.rankfile.backend:RankfileBackend"}


@dataclass(frozen=True, slots=True)
class BackendInfo:
    """A backend that could be used: its name, who provides it, where its class is, and what is wrong with it."""

    name: str
    origin: str
    target: str
    features: tuple[str, ...] = ()
    problem: str = ""


def discover() -> tuple[BackendInfo, ...]:
    """Return all backends, sorted, without importing any. Independent."""
    return _discover(tuple(sys.path))


@functools.lru_cache(maxsize=4)
def _discover(path: tuple[str, ...]) -> tuple[BackendInfo, ...]:  # noqa: ARG001 - what was found depends on it
    """Read the metadata of every installed package: a hundred small files, so once per process."""
    found = [BackendInfo(name, "hpcckpt", target) for name, target in _BUILT_IN.items()]
    for point in importlib.metadata.entry_points(group=GROUP):
        origin = point.dist.name if point.dist else "unknown"
        found.append(BackendInfo(point.name, origin, point.value))
    return tuple(sorted(set(found), key=lambda info: (info.name, info.origin, info.target)))


def known_backends() -> tuple[BackendInfo, ...]:
    """Return all backends with their features, or with what is wrong with them. Independent."""
    found = discover()
    counts = Counter(info.name for info in found)
    return tuple(_inspected(info, is_unique=counts[info.name] == 1) for info in found)


def _inspected(info: BackendInfo, *, is_unique: bool) -> BackendInfo:
    if not is_unique:
        return BackendInfo(info.name, info.origin, info.target, problem="the name is taken twice")
    try:
        features = tuple(sorted(load_class(info).features))
    except BackendError as error:
        return BackendInfo(info.name, info.origin, info.target, problem=str(error))
    return BackendInfo(info.name, info.origin, info.target, features)


def find_backend(name: str) -> BackendInfo:
    """Return the backend of this name. Independent.

    Raises
    ------
    BackendNotFoundError
        If no backend has this name; lists those that exist.
    BackendConflictError
        If two have it; names the packages.
    """
    matches = [info for info in discover() if info.name == name]
    if not matches:
        known = ", ".join(sorted({info.name for info in discover()}))
        raise BackendNotFoundError(
            f"backend: {name!r} is not one of {known}; is the package that provides it installed?"
        )
    if len(matches) > 1:
        origins = " and ".join(f"{info.origin} ({info.target})" for info in matches)
        raise BackendConflictError(f"backend name {name!r} is provided by {origins}; uninstall one of them")
    return matches[0]


def load_class(info: BackendInfo) -> type[Backend]:
    """Import and return the class of a backend. Independent.

    Raises
    ------
    BackendError
        If the import fails, or what is found is not a backend; names the package.
    """
    from hpcckpt.backends.base import Backend  # needs NumPy, listing does not

    module, _, attribute = info.target.partition(":")
    try:
        cls = getattr(importlib.import_module(module), attribute)
    except Exception as error:
        raise BackendError(
            f"backend {info.name!r} of {info.origin} cannot be loaded: {type(error).__name__}: {error}"
        ) from error
    if not (isinstance(cls, type) and issubclass(cls, Backend)):
        raise BackendError(f"backend {info.name!r} of {info.origin}: {info.target} is not a Backend class")
    return cls


def make_backend(name: str, threads: int = 1) -> Backend:
    """Return a new backend of this name. Independent."""
    return load_class(find_backend(name))(threads=threads)
