"""Storage plugins: shared libraries that follow ``include/hpcckpt/plugin.h``. Independent.

A plugin is loaded from a path that the program gives, or found by its name in the directories of
``HPCCKPT_PLUGIN_PATH`` and then among the samples that come with this package.  A checkpoint contains at most a name,
never a path.

``python -m hpcckpt.native.plugins FD FILE...`` loads files and writes their contents, one line of JSON for each, to a
file descriptor, so that output of the files themselves is not mistaken for it.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import hpcckpt.native
from hpcckpt.core.files import write_whole
from hpcckpt.core.private_dirs import why_not_safe
from hpcckpt.errors import BackendConflictError, BackendError, BackendNotFoundError, PluginError
from hpcckpt.native import abi, handshake, loader_errors
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
    "skipped",
]

PATH_VARIABLE = "HPCCKPT_PLUGIN_PATH"
LOAD_LIMIT_S = 30.0
"""How long a plugin may take to be loaded where it is only looked into."""
_SAMPLES = Path("lib/plugins")

_lock = threading.RLock()
_by_file: dict[str, tuple[LoadedBackend, ...]] = {}
_by_name: dict[str, LoadedBackend] = {}


def _become_child() -> None:
    """Make a new lock in a forked child: no thread there would release one that was held."""
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_become_child)


def search_path() -> list[Path]:
    """Return the directories in which plugins are found by name, first those of ``HPCCKPT_PLUGIN_PATH``.

    Directories that other users own or can write are left out: anybody could have put code there.
    """
    own = [directory for directory in _named_directories() if not _why_skipped(directory)]
    return own + [Path(root) / _SAMPLES for root in hpcckpt.native.__path__]


def _named_directories() -> list[Path]:
    return [Path(entry) for entry in os.environ.get(PATH_VARIABLE, "").split(os.pathsep) if entry]


def _why_skipped(place: Path) -> str:
    """Return why a directory or file is skipped; "" if it is not, or if nothing is there."""
    if not place.exists() or any(place.is_relative_to(root) for root in hpcckpt.native.__path__):
        return ""
    reason = why_not_safe(place)
    return f"{place} is skipped: {reason}" if reason else ""


def skipped() -> dict[str, str]:
    """Return why files in ``HPCCKPT_PLUGIN_PATH``, or whole directories, are not loaded, by their paths."""
    found: dict[str, str] = {}
    for directory in _named_directories():
        reason = _why_skipped(directory)
        if reason:
            found[os.fspath(directory)] = reason
            continue
        for name in _listed(directory):
            why = _why_skipped(directory / name) if name.endswith(".so") else ""
            if why:
                found[os.fspath(directory / name)] = why
    return found


def _listed(directory: Path) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except OSError:
        return []


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
        If there is no such file, or it is no plugin, too old, too new, for another platform, or damaged, or has two
        backends of one name; the message has the remedy. It is an OSError.
    BackendConflictError
        If a backend of this name was loaded from another file; names both files.
    """
    file = _existing(os.fspath(path))
    with _lock:
        if file not in _by_file:
            _register(file, _open(file))
        return _by_file[file]


def find(name: str) -> LoadedBackend:
    """Return the backend of this name; load its plugin if necessary.

    The plugin is ``lib<name>.so`` or ``<name>.so``.

    Raises
    ------
    BackendNotFoundError
        If there is no such backend; lists those that are known.
    BackendError
        If its plugin cannot be loaded, or has no such backend.
    """
    with _lock:
        if name in _by_name:
            return _by_name[name]
        if not handshake.NAME.fullmatch(name):
            raise BackendNotFoundError(f"plugin backend {name!r} not found: a name is a C identifier; {_known()}")
        file = next((each for each in _candidates(name) if each.is_file() and not _why_skipped(each)), None)
        if file is None:
            searched = ", ".join(map(str, search_path()))
            passed = "".join(f"{why}; " for why in skipped().values())
            raise BackendNotFoundError(
                f"plugin backend {name!r} not found; {passed}{_known()}; "
                f"searched {searched} for lib{name}.so and {name}.so; "
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
    """Return the plugin files on the search path, without loading them.

    They are sorted by the names under which `find` finds them.
    """
    found: dict[str, Path] = {}
    for directory in search_path():
        for file in _listed(directory):
            name = file.removesuffix(".so").removeprefix("lib")
            if file.endswith(".so") and handshake.NAME.fullmatch(name) and not _why_skipped(directory / file):
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
    found = next((each for each in tried if os.path.exists(each) and not _why_skipped(Path(each))), None)
    if found is None:
        raise PluginError(f"plugin {path} does not exist; tried {', '.join(tried)}; {PATH_VARIABLE} adds directories")
    return os.path.realpath(found)


def _open(file: str) -> list[handshake.BackendRecord]:
    try:
        library = ctypes.CDLL(file, mode=os.RTLD_NOW | os.RTLD_LOCAL)
    except OSError as error:
        raise loader_errors.explain(file, error) from error
    try:
        entry = library[abi.SYMBOL]
    except AttributeError:
        raise loader_errors.explain_no_entry(file) from None
    entry.restype, entry.argtypes = ctypes.c_void_p, []
    return handshake.read_plugin(file, entry() or 0)


def _register(file: str, records: Sequence[handshake.BackendRecord]) -> None:
    """Make all backends of a file known, or none of them."""
    backends: dict[str, LoadedBackend] = {}
    for record in records:
        if record.name in backends:
            raise PluginError(f"plugin {file} registers {record.name!r} twice; rename one of them")
        other = _by_name.get(record.name)
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


def inspect(files: Sequence[str | os.PathLike[str]], limit_s: float = LOAD_LIMIT_S) -> list[PluginFile]:
    """Say what is in files, loading them in a process of their own: one that crashes or never returns harms nothing.

    Parameters
    ----------
    files
        Shared libraries.
    limit_s
        How long loading one may take.

    Returns
    -------
    list of PluginFile
        One for each, in order.
    """
    names = [os.fspath(file) for file in files]
    found: list[PluginFile] = []
    while len(found) < len(names):
        left = names[len(found) :]
        reported, problem = _look_into(left, limit_s)
        found += reported
        if len(reported) < len(left):  # this one ended or blocked the process
            found.append(PluginFile(left[len(reported)], problem=problem))
    return found


def _look_into(names: Sequence[str], limit_s: float) -> tuple[list[PluginFile], str]:
    """Return what a new process reports about files, and why it stopped; the output of the files is discarded."""
    answers, write_end = os.pipe()
    command = [sys.executable, "-m", "hpcckpt.native.plugins", str(write_end), *names]
    with tempfile.TemporaryFile() as errors, os.fdopen(answers, "rb", 0) as answers_file:
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                pass_fds=(write_end,),
                start_new_session=True,
            )
        finally:
            os.close(write_end)
        reported, is_silent = _read_answers(answers_file.fileno(), len(names), limit_s)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # its reports are complete; children are killed too
        process.wait()
        if is_silent:
            return reported, f"does not return within {limit_s:g} s when it is loaded"
        return reported, f"crashes when it is loaded: {_last_line(errors) or f'exit status {process.returncode}'}"


def _read_answers(fd: int, n_files: int, limit_s: float) -> tuple[list[PluginFile], bool]:
    """Return the reports of the process up to its end or a time-out, and True after a time-out."""
    text = b""
    while text.count(b"\n") < n_files:
        if not select.select([fd], [], [], limit_s)[0]:
            return _parse_reports(text), True
        part = os.read(fd, 1 << 16)
        if not part:
            break
        text += part
    return _parse_reports(text), False


def _last_line(file: IO[bytes]) -> str:
    file.seek(max(0, file.seek(0, os.SEEK_END) - 4096))
    return file.read().decode("utf-8", "replace").strip().rpartition("\n")[2]


def _parse_reports(text: bytes) -> list[PluginFile]:
    found: list[PluginFile] = []
    for line in text.split(b"\n")[:-1]:  # whole lines only
        reported = json.loads(line)
        backends = tuple((name, tuple(features)) for name, features in reported["backends"])
        found.append(PluginFile(reported["file"], backends, reported["problem"]))
    return found


def _report(file: str) -> str:
    """Load a file as if it were the only one; return its contents as a line of JSON."""
    _by_file.clear()
    _by_name.clear()
    backends: list[tuple[str, list[str]]] = []
    problem = ""
    try:
        backends = [(backend.name, sorted(backend.features)) for backend in load(file)]
    except BackendError as error:
        problem = str(error)
    return json.dumps({"file": file, "backends": backends, "problem": problem}) + "\n"


def _report_all(fd: int, files: Sequence[str]) -> None:
    """Report files one after the other on a descriptor that they do not inherit."""
    os.set_inheritable(fd, False)
    for file in files:
        write_whole(fd, _report(file).encode())


if __name__ == "__main__":
    _report_all(int(sys.argv[1]), sys.argv[2:])
