"""Old names of 0.1 and 0.2: module paths, served by one import hook, and attributes of objects.

Paths that backends and programs of others import (`STAYING`) stay. All other names warn, and end with release 0.3.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

PACKAGE = "hpcckpt"
STAYING = {
    "discovery": "rundir.discovery",
    "lms.verification": "lms.planner.verify_step",
    "plan": "core.plan",
    "tensors": "core.tensors",
    "train.problems": "train.config_errors",
}
"""Documented path -> module, both as seen from the package; used without a warning."""

MOVED = {
    "collective.commit": "rundir.commit",
    "phases": "core.failpoints",
    "statedicts": "state.state_dict",
    "train.cycles": "train.config.cycles",
}
"""Old path -> module, both as seen from the package."""

IN_ROOT = frozenset(old for old in (*STAYING, *MOVED) if "." not in old)
"""Old paths that are attributes of the package too, as they were once anything had imported them."""


class _Finder(MetaPathFinder):
    """Finds the old paths, and nothing else."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:  # noqa: ARG002
        """Return the spec of an old path; None for all others."""
        package, _, old = fullname.partition(".")
        if package != PACKAGE or (old not in STAYING and old not in MOVED):
            return None
        if old in MOVED:
            new = f"{PACKAGE}.{MOVED[old]}"
            warnings.warn(
                f"{fullname} is now {new}; the old path ends with hpcckpt 0.3", DeprecationWarning, stacklevel=2
            )
        return ModuleSpec(fullname, _Loader(f"{PACKAGE}.{STAYING.get(old) or MOVED[old]}"))


class _Loader(Loader):
    """Loads the module of a new path in place of one that was at an old path."""

    def __init__(self, new: str) -> None:
        self._new = new
        self._spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:  # noqa: ARG002
        """Return the module of the new path."""
        module = importlib.import_module(self._new)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Leave the module as it is; its spec stays that of the new path."""
        module.__spec__ = self._spec


def renamed(old: str, new: str) -> Any:
    """Return a property that serves an attribute or method under its old name, and warns.

    Parameters
    ----------
    old, new : str
        The names.
    """

    def get(self: Any) -> Any:
        text = f"{type(self).__name__}.{old} is now {new}; the old name ends with hpcckpt 0.3"
        warnings.warn(text, DeprecationWarning, stacklevel=2)
        return getattr(self, new)

    return property(get, doc=f"The old name of `{new}`.")


def install() -> None:
    """Serve old paths from now on. Independent."""
    ours = _Finder.__module__, _Finder.__qualname__  # not the class: an earlier import of the package had another one
    if ours not in ((type(finder).__module__, type(finder).__qualname__) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())
