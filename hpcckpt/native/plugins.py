"""Storage plugins: shared libraries that follow ``include/hpcckpt/plugin.h``. Independent.

A plugin is loaded from a path that the program gives, or found by its name in the directories of
``HPCCKPT_PLUGIN_PATH`` and then among the samples that come with this package.  What stands in a checkpoint is at most
a name, never a path.

``python -m hpcckpt.native.plugins FILE...`` loads files and says what is in them, one line of JSON for each.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import hpcckpt.native
from hpcckpt.errors import BackendConflictError, BackendError, BackendNotFoundError, PluginError
from hpcckpt.native import abi, handshake
from hpcckpt.native.instances import Instance, LoadedBackend, PluginContext, PluginTensor

__all__ = [
    "PATH_VARIABLE",
    "Instance",
    "LoadedBackend",
    "PluginContext",
    "PluginFile",
    "PluginTensor",
    "available",
    "find",
    "inspect",
    "load",
    "loaded",
    "search_path",
]

PATH_VARIABLE = "HPCCKPT_PLUGIN_PATH"
_SAMPLES = Path("lib/plugins")

_lock = threading.RLock()
_by_file: dict[str, tuple[LoadedBackend, ...]] = {}
_by_name: dict[str, LoadedBackend] = {}


def search_path() -> list[Path]:
    """Return the directories in which plugins are found by name, first those of ``HPCCKPT_PLUGIN_PATH``."""
    own = [Path(entry) for entry in os.environ.get(PATH_VARIABLE, "").split(os.pathsep) if entry]
    return own + [Path(root) / _SAMPLES for root in hpcckpt.native.__path__]


def load(path: str | os.PathLike[str]) -> tuple[LoadedBackend, ...]:
    """Load a plugin; if it is loaded already, do nothing.

    Parameters
    ----------
    path
        The shared library; a name without a directory that is not in the working directory is searched for.

    Returns
    -------
    tuple of LoadedBackend
        The backends in it, by their names.

    Raises
    ------
    PluginError
        Which is an OSError: if there is no such file, or it is no plugin, too old, too new, for another platform, or
        damaged; says what to do.
    BackendConflictError
        If a backend of this name came from another file; names both.
    """
    file = _existing(os.fspath(path))
    with _lock:
        if file not in _by_file:
            _register(file, _open(file))
        return _by_file[file]


def find(name: str) -> LoadedBackend:
    """Return the backend of this name, loading the plugin ``lib<name>.so`` or ``<name>.so`` if need be.

    Raises
    ------
    BackendNotFoundError
        If there is none; lists those that are known.
    BackendError
        If its plugin cannot be loaded, or has no such backend.
    """
    with _lock:
        if name in _by_name:
            return _by_name[name]
        if not handshake.NAME.fullmatch(name):
            raise BackendNotFoundError(f"plugin backend {name!r} not found: a name is a C identifier; {_known()}")
        file = next((each for each in _candidates(name) if each.is_file()), None)
        if file is None:
            searched = ", ".join(map(str, search_path()))
            raise BackendNotFoundError(
                f"plugin backend {name!r} not found; {_known()}; searched {searched} for lib{name}.so and {name}.so; "
                f"set {PATH_VARIABLE}, or load the plugin with hpcckpt.plugins.load(path)"
            )
        found = {backend.name: backend for backend in load(file)}
        if name not in found:
            raise BackendError(f"plugin {file} has no backend {name!r}, but {', '.join(found)}: rename one of the two")
        return found[name]


def loaded() -> dict[str, LoadedBackend]:
    """Return the backends of all plugins that are loaded, by name, sorted."""
    with _lock:
        return dict(sorted(_by_name.items()))


def available() -> dict[str, Path]:
    """Return the files on the search path, by the name under which each is found, sorted; nothing is loaded."""
    found: dict[str, Path] = {}
    for directory in search_path():
        try:
            files = sorted(os.listdir(directory))
        except OSError:
            continue
        for file in files:
            name = file.removesuffix(".so").removeprefix("lib")
            if file.endswith(".so") and handshake.NAME.fullmatch(name):
                found.setdefault(name, directory / file)
    return dict(sorted(found.items()))


# -- loading ---------------------------------------------------------------------------------------


def _existing(path: str) -> str:
    """Return the true path of a file, searched for if only its name is given."""
    if os.path.exists(path):
        return os.path.realpath(path)
    tried = [path]
    if os.path.basename(path) == path:
        tried += [str(directory / path) for directory in search_path()]
    found = next((each for each in tried if os.path.exists(each)), None)
    if found is None:
        raise PluginError(f"plugin {path} does not exist; tried {', '.join(tried)}; {PATH_VARIABLE} adds directories")
    return os.path.realpath(found)


def _open(file: str) -> list[handshake.BackendRecord]:
    try:
        library = ctypes.CDLL(file, mode=os.RTLD_NOW | os.RTLD_LOCAL)
    except OSError as error:
        raise handshake.explain_loader(file, error) from error
    try:
        entry = library[abi.SYMBOL]
    except AttributeError:
        raise PluginError(
            f"plugin {file} is none: it exports no {abi.SYMBOL}; does its source say HPCCKPT_REGISTER_BACKEND (C++) or "
            f"HPCCKPT_EXPORT_BACKENDS (C)?"
        ) from None
    entry.restype, entry.argtypes = ctypes.c_void_p, []
    return handshake.read_plugin(file, entry() or 0)


def _register(file: str, records: Sequence[handshake.BackendRecord]) -> None:
    """Make all backends of a file known, or none of them."""
    backends: dict[str, LoadedBackend] = {}
    for record in records:
        other = backends.get(record.name) or _by_name.get(record.name)
        if other is not None:
            raise BackendConflictError(
                f"plugin backend {record.name!r} of {file} is already registered by {other.origin}; rename one of them"
            )
        backends[record.name] = LoadedBackend.of(record, file)
    _by_file[file] = tuple(backends.values())
    _by_name.update(backends)


def _candidates(name: str) -> list[Path]:
    return [directory / file for directory in search_path() for file in (f"lib{name}.so", f"{name}.so")]


def _known() -> str:
    known = sorted({*_by_name, *available()})
    return f"known: {', '.join(known) or 'none'}"


# -- looking without risk --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PluginFile:
    """What is in a file: its backends and their features, or what is wrong with it."""

    file: str
    backends: tuple[tuple[str, tuple[str, ...]], ...] = ()
    problem: str = ""


def inspect(files: Sequence[str | os.PathLike[str]]) -> list[PluginFile]:
    """Say what is in files, loading them in a process of their own: one that crashes harms nothing.

    Parameters
    ----------
    files
        Shared libraries.

    Returns
    -------
    list of PluginFile
        One for each, in order.
    """
    names = [os.fspath(file) for file in files]
    found: list[PluginFile] = []
    while len(found) < len(names):
        command = [sys.executable, "-m", "hpcckpt.native.plugins", *names[len(found) :]]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        found += [_told(line) for line in done.stdout.splitlines() if line.startswith("{")]
        if len(found) < len(names):  # this one ended the process
            reason = done.stderr.strip().rpartition("\n")[2] or f"exit status {done.returncode}"
            found.append(PluginFile(names[len(found)], problem=f"crashes when it is loaded: {reason}"))
    return found


def _told(line: str) -> PluginFile:
    told = json.loads(line)
    backends = tuple((name, tuple(features)) for name, features in told["backends"])
    return PluginFile(told["file"], backends, told["problem"])


def _tell(file: str) -> str:
    """Load a file as if it were the only one; return what is in it as a line of JSON."""
    _by_file.clear()
    _by_name.clear()
    backends: list[tuple[str, list[str]]] = []
    problem = ""
    try:
        backends = [(backend.name, sorted(backend.features)) for backend in load(file)]
    except BackendError as error:
        problem = str(error)
    return json.dumps({"file": file, "backends": backends, "problem": problem})


if __name__ == "__main__":
    for _file in sys.argv[1:]:
        print("\n" + _tell(_file), flush=True)
