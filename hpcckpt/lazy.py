"""Names of a package that are loaded on first use."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Mapping
from typing import Any


def attach(
    package: str, public: Collection[str], home: Mapping[str, str], rooms: Collection[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return what a package that loads its names on first use has as ``__getattr__`` and ``__dir__``. Independent.

    Parameters
    ----------
    package : str
        The package.
    public : collection of str
        Its ``__all__``.
    home : mapping of str to str
        The module of each name, as seen from the package.
    rooms : collection of str
        Modules of the package that are names themselves.
    """

    def load(name: str) -> Any:
        if name in home:
            return getattr(importlib.import_module(f"{package}.{home[name]}"), name)
        if name in rooms:
            return importlib.import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return load, lambda: sorted(public)
