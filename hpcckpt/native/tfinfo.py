"""Where the installed TensorFlow is, and how to compile against it: ``python -m hpcckpt.native.tfinfo``.

Four things must be known: libraries, their directories, directories of headers, and flags for the compiler. Each is
taken from the first of these that says it:

1. its environment variable: ``HPCCKPT_TF_LIBRARIES``, ``HPCCKPT_TF_LIBRARY_DIRS``, ``HPCCKPT_TF_INCLUDE_DIRS``,
   ``HPCCKPT_TF_EXTRA_CXXFLAGS`` (directories with ``:`` between them, the others as in a shell);
2. the file ``tensorflow.json`` beside this module, or the one that ``HPCCKPT_TENSORFLOW_JSON`` or ``--file`` names;
   ``null`` there means: guess;
3. TensorFlow itself, ``tf.sysconfig``.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from hpcckpt.errors import ConfigError, Problem, list_problems

KEYS = ("libraries", "library_dirs", "include_dirs", "extra_cxxflags")
FILE = Path(__file__).with_name("tensorflow.json")
GUESSED = "tf.sysconfig"
_ABI_FLAG = re.compile(r"-D_GLIBCXX_USE_CXX11_ABI=([01])")


class Guess(NamedTuple):
    """What TensorFlow says of itself: its version, and the flags of its compiler and of its linker."""

    version: str
    compile_flags: Sequence[str]
    link_flags: Sequence[str]


@dataclass(frozen=True, slots=True)
class Setting:
    """Values, and where they are from."""

    values: tuple[str, ...]
    source: str


@dataclass(frozen=True, slots=True)
class TfInfo:
    """The installed TensorFlow, and how to compile against it."""

    version: str
    libraries: Setting
    library_dirs: Setting
    include_dirs: Setting
    extra_cxxflags: Setting

    @property
    def cxx11_abi(self) -> str:
        """Which form C++ strings have, ``"0"`` or ``"1"``; empty where no flag says."""
        found = [match[1] for flag in self.extra_cxxflags.values if (match := _ABI_FLAG.fullmatch(flag))]
        return found[-1] if found else ""

    @property
    def compile_flags(self) -> list[str]:
        """Flags for the compiler. Headers are marked as others', so that they give no warnings."""
        includes = [flag for path in self.include_dirs.values for flag in ("-isystem", path)]
        return [*self.extra_cxxflags.values, *includes]

    @property
    def link_flags(self) -> list[str]:
        """Flags for the linker."""
        return [f"-L{path}" for path in self.library_dirs.values] + [f"-l{name}" for name in self.libraries.values]

    def as_json(self) -> dict[str, Any]:
        """Return it for programs."""
        settings: dict[str, Setting] = {key: getattr(self, key) for key in KEYS}
        return {
            "tensorflow": self.version,
            "cxx11_abi": self.cxx11_abi,
            **{key: list(setting.values) for key, setting in settings.items()},
            "sources": {key: setting.source for key, setting in settings.items()},
        }


def ask_tensorflow() -> Guess:
    """Return what the installed TensorFlow says of itself.

    Raises
    ------
    ConfigError
        If none is installed, or it cannot be imported.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    try:
        import tensorflow as tf
    except ModuleNotFoundError as error:
        raise ConfigError(f"TensorFlow is not installed ({error}): pip install 'hpcckpt[tf]'") from None
    except ImportError as error:
        raise ConfigError(f"TensorFlow is installed and cannot be imported: {error}") from error
    return Guess(tf.__version__, tf.sysconfig.get_compile_flags(), tf.sysconfig.get_link_flags())


def resolve(
    file: str | os.PathLike[str] | None = None,
    environ: Mapping[str, str] = os.environ,
    ask: Callable[[], Guess] = ask_tensorflow,
) -> TfInfo:
    """Return the installed TensorFlow, and how to compile against it.

    Parameters
    ----------
    file : path_like, optional
        A file in the form of ``tensorflow.json``.
    environ : mapping
        Environment variables.
    ask : callable
        Returns what TensorFlow says of itself.

    Raises
    ------
    ConfigError
        If there is no TensorFlow, or the file is not what it should be; naming every problem.
    """
    path = Path(file or environ.get("HPCCKPT_TENSORFLOW_JSON") or FILE)
    given = _read(path)
    said = ask()
    guessed = _sort_flags(said)

    def setting(key: str) -> Setting:
        variable = f"HPCCKPT_TF_{key.upper()}"
        if variable in environ:
            text = environ[variable]
            parts = text.split(os.pathsep) if key.endswith("_dirs") else shlex.split(text)
            return Setting(tuple(filter(None, parts)), variable)
        values = given.get(key)
        return Setting(guessed[key], GUESSED) if values is None else Setting(values, str(path))

    return TfInfo(said.version, *map(setting, KEYS))


def _read(path: Path) -> dict[str, tuple[str, ...] | None]:
    try:
        document = json.loads(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; name another file with HPCCKPT_TENSORFLOW_JSON") from None
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise ConfigError(f"{path}: not an object with the keys {', '.join(KEYS)}")
    problems = [Problem(key, f"unknown; one of {', '.join(KEYS)}") for key in document if key not in KEYS]
    problems += [
        Problem(key, "neither null, nor a string, nor a list of strings")
        for key, value in document.items()
        if key in KEYS and not _is_plain(value)
    ]
    if problems:
        raise ConfigError(f"{path}: {list_problems(problems)}")
    return {key: _as_tuple(value) for key, value in document.items()}


def _as_tuple(value: Any) -> tuple[str, ...] | None:
    if value is None:
        return None
    return (value,) if isinstance(value, str) else tuple(value)


def _is_plain(value: Any) -> bool:
    if isinstance(value, list):
        return all(isinstance(item, str) for item in value)
    return value is None or isinstance(value, str)


def _sort_flags(said: Guess) -> dict[str, tuple[str, ...]]:
    """Sort the flags of TensorFlow under the four keys."""

    def behind(prefix: str, flags: Sequence[str]) -> tuple[str, ...]:
        return tuple(flag[len(prefix) :] for flag in flags if flag.startswith(prefix))

    return {
        "libraries": behind("-l", said.link_flags),
        "library_dirs": behind("-L", said.link_flags),
        "include_dirs": behind("-I", said.compile_flags),
        "extra_cxxflags": tuple(flag for flag in said.compile_flags if not flag.startswith("-I")),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what was found, for people or for programs."""
    parser = argparse.ArgumentParser(prog="python -m hpcckpt.native.tfinfo", description=main.__doc__)
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.add_argument("--file", help="a file in the form of tensorflow.json, in place of the one of the package")
    chosen = parser.parse_args(arguments)
    try:
        info = resolve(chosen.file)
    except ConfigError as error:
        print(f"hpcckpt: {error}", file=sys.stderr)
        return 1
    print(json.dumps(info.as_json(), indent=2) if chosen.json else _table(info))
    return 0


def _table(info: TfInfo) -> str:
    lines = [f"TensorFlow {info.version}, CXX11_ABI={info.cxx11_abi or '?'} (from {info.extra_cxxflags.source})"]
    for key in KEYS:
        setting: Setting = getattr(info, key)
        for number, value in enumerate(setting.values or ("-",)):
            lines.append(f"{'' if number else key:15} {'' if number else setting.source:13} {value}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
