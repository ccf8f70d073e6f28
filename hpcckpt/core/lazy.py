"""Names of a package that are loaded on first use, and what is done when another module is imported."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.util
import sys
from collections.abc import Callable, Collection, Mapping
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

EXTRAS = {
    "tensorflow": "tf", "keras": "tf", "horovod": "horovod", "mpi4py": "mpi", "h5py": "hdf5", "torch": "torch",
    "hjson": "train", "pydantic": "train", "psutil": "train", "sklearn": "digits", "matplotlib": "plot",
}  # fmt: skip
"""Packages -> the extra of hpcckpt that installs them."""


def attach(
    package: str, public: Collection[str], module_of: Mapping[str, str], submodules: Collection[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return what a package that loads its names on first use has as ``__getattr__`` and ``__dir__``. Independent.

    Parameters
    ----------
    package : str
        The package.
    public : collection of str
        Its ``__all__``.
    module_of : mapping of str to str
        The module of each name, as seen from the package.
    submodules : collection of str
        Modules of the package that are names themselves.
    """

    def load(name: str) -> Any:
        if name in module_of:
            return getattr(_imported(f"{package}.{module_of[name]}"), name)
        if name in submodules:
            return _imported(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return load, lambda: sorted(public)


def _imported(module: str) -> ModuleType:
    """Import a module of this package; where a package of an extra is missing, the error says how to install it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        extra = EXTRAS.get(error.name or "")
        if extra is None:
            raise
        text = f"{module} needs {error.name}, which is not installed: pip install 'hpcckpt[{extra}]'"
        raise ModuleNotFoundError(text, name=error.name) from error


def when_imported(name: str, call: Callable[[], None]) -> None:
    """Call a function after a module is imported: now, if it is already. Independent.

    Parameters
    ----------
    name : str
        The module; it is not imported by this.
    call : callable
        What is called, at most once.
    """
    if sys.modules.get(name) is not None:
        call()
    else:
        sys.meta_path.insert(0, _ImportHook(name, call))


class _ImportHook(importlib.abc.MetaPathFinder):
    """Finds a module as the other finders do, and has a function called when the module has been executed."""

    def __init__(self, name: str, call: Callable[[], None]) -> None:
        self._name, self._call = name, call
        self._is_searching = False

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:  # noqa: ARG002
        """Return the spec of the module, with a loader that calls the function; None for all others."""
        if fullname != self._name or self._is_searching:
            return None
        self._is_searching = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._is_searching = False
        if spec is not None and spec.loader is not None:
            self._extend(spec.loader)
        return spec

    def _extend(self, loader: importlib.abc.Loader) -> None:
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                self._call()

        setattr(loader, "exec_module", exec_module)  # noqa: B010 - of this loader, not of its class
