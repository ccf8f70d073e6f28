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
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hpcckpt._version import __version__
from hpcckpt.errors import BackendConflictError, BackendError, BackendNotFoundError, HpcckptError

if TYPE_CHECKING:
    from hpcckpt.backends.base import Backend

GROUP = "hpcckpt.backends"
_BUILT_IN = {
    "hdf5": "hpcckpt.backends.hdf5.backend:Hdf5Backend",
    "plugin": "hpcckpt.backends.plugin.backend:PluginBackend",
    "rankfile": "hpcckpt.backends.rankfile.backend:RankfileBackend",
}


@dataclass(frozen=True, slots=True)
class BackendInfo:
    """A backend that could be used.

    Attributes
    ----------
    name : str
        As users give it: ``NAME``, or ``NAME:VARIANT``.
    origin, version : str
        The package that provides it.
    target : str
        Where its class is: ``module:class``.
    features : tuple of str
        What it can do; empty before it was imported.
    problem : str
        What is wrong with it; empty if nothing is.
    """

    name: str
    origin: str
    target: str
    version: str = ""
    features: tuple[str, ...] = ()
    problem: str = ""


def discover() -> tuple[BackendInfo, ...]:
    """Return all backends, sorted, without importing any. Independent."""
    return _discover(tuple(sys.path))


@functools.lru_cache(maxsize=4)
def _discover(path: tuple[str, ...]) -> tuple[BackendInfo, ...]:  # noqa: ARG001 - what was found depends on it
    """Read the metadata of every installed package: a hundred small files, so once per process."""
    found = [BackendInfo(name, "hpcckpt", target, __version__) for name, target in _BUILT_IN.items()]
    for point in importlib.metadata.entry_points(group=GROUP):
        origin, version = (point.dist.name, point.dist.version) if point.dist else ("unknown", "")
        found.append(BackendInfo(point.name, origin, point.value, version))
    return tuple(sorted(set(found), key=lambda info: (info.name, info.origin, info.target)))


def known_backends() -> tuple[BackendInfo, ...]:
    """Return all backends with their features, or with what is wrong with them. Independent."""
    found = discover()
    counts = Counter(info.name for info in found)
    return tuple(_inspected(info, is_unique=counts[info.name] == 1) for info in found)


def _inspected(info: BackendInfo, *, is_unique: bool) -> BackendInfo:
    if not is_unique:
        return replace(info, problem="the name is taken twice")
    try:
        return replace(info, features=tuple(sorted(load_class(info).features)))
    except BackendError as error:
        return replace(info, problem=str(error))


def find_backend(name: str) -> BackendInfo:
    """Return the backend of this name, or of this name and variant (``plugin:posix``). Independent.

    Raises
    ------
    BackendNotFoundError
        If no backend has this name; lists those that exist.
    BackendConflictError
        If two have it; names the packages.
    """
    base, colon, variant = name.partition(":")
    matches = [info for info in discover() if info.name == base]
    if not matches:
        known = ", ".join(sorted({info.name for info in discover()}))
        raise BackendNotFoundError(
            f"backend: {name!r} is not one of {known}; is the package that provides it installed?"
        )
    if len(matches) > 1:
        origins = " and ".join(f"{info.origin} ({info.target})" for info in matches)
        raise BackendConflictError(f"backend name {base!r} is provided by {origins}; uninstall one of them")
    return replace(matches[0], name=f"{base}{colon}{variant}")


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
    except HpcckptError:
        raise  # it says itself what is missing
    except Exception as error:
        raise BackendError(
            f"backend {info.name!r} of {info.origin} cannot be loaded: {type(error).__name__}: {error}"
        ) from error
    if not (isinstance(cls, type) and issubclass(cls, Backend)):
        raise BackendError(f"backend {info.name!r} of {info.origin}: {info.target} is not a Backend class")
    variant = info.name.partition(":")[2]
    return cls.variant(variant) if variant else cls
