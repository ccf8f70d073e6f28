"""Write the project of a new plugin, with nothing to edit: CMake for C and C++, a package for Python."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from string import Template

from hpcckpt._version import __version__
from hpcckpt.errors import OptionError
from hpcckpt.native.handshake import NAME

_TEMPLATES = Path(__file__).parent / "templates"


_PYTHON = shlex.quote(sys.executable)


@dataclass(frozen=True, slots=True)
class _Language:
    folder: str
    cmake_languages: str
    suffix: str
    add_options: str = ""
    shared: tuple[str, ...] = ("common",)
    prefix: str = ""
    build: str = "cmake -S . -B build && cmake --build build"


LANGUAGES = {
    "c++": _Language("c++", "CXX", "cpp"),
    "c": _Language("c", "C", "c"),
    "tmci": _Language("tmci", "CXX", "cpp", "TMCI "),
    "python": _Language(
        "python", "", "py", shared=(), prefix="hpcckpt_", build=f"{_PYTHON} -m pip install --no-deps -e ."
    ),
}
"""What a plugin can be written in."""

_BUILT_IN = frozenset({"hdf5", "plugin", "rankfile"})
_RESERVED = frozenset(
    {"all", "clean", "edit_cache", "help", "install", "linux", "package", "rebuild_cache", "test", "unix"}
)
"""Targets that CMake has, and names that compilers give another meaning."""


def commands(lang: str) -> str:
    """Return the shell commands that build a project and try it. Pure."""
    return f"{LANGUAGES[lang].build} && {_PYTHON} try_it.py"


def write_project(name: str, lang: str, directory: Path) -> list[Path]:
    """Write the project of a plugin into a new directory.

    Parameters
    ----------
    name : str
        Of the backend, a C identifier.
    lang : str
        One of `LANGUAGES`.
    directory : pathlib.Path
        Where; must not exist, or be empty.

    Returns
    -------
    list of pathlib.Path
        The files written.

    Raises
    ------
    OptionError
        If the name is invalid, or a file is in the way.
    """
    if lang == "python" and name in _BUILT_IN:
        raise OptionError(f"{name!r} is the name of a built-in backend: take another one, such as my_store")
    if not NAME.fullmatch(name) or (lang != "python" and name in _RESERVED):
        raise OptionError(f"{name!r} cannot be a plugin's name: take a C identifier such as my_store")
    if lang not in LANGUAGES:
        raise OptionError(f"--lang: {lang!r} is not one of {', '.join(LANGUAGES)}")
    if directory.exists() and not (directory.is_dir() and not any(directory.iterdir())):
        raise OptionError(f"{directory} is there already: give another directory")
    texts = _texts(name, LANGUAGES[lang])
    directory.mkdir(parents=True, exist_ok=True)
    written = []
    for file, text in texts.items():
        (directory / file).write_text(text, encoding="utf-8")
        written.append(directory / file)
    return written


def _texts(name: str, language: _Language) -> dict[str, str]:
    source = f"{language.prefix}{name}.{language.suffix}"
    values = {
        "name": name,
        "class_name": "".join(part[:1].upper() + part[1:] for part in name.split("_")) + "Backend",
        "source": source,
        "languages": language.cmake_languages,
        "add_options": language.add_options,
        "python": sys.executable,
        "python_command": "python",
        "version": __version__,
    }
    templates = {
        template.name.removesuffix(".in"): template
        for folder in (*language.shared, language.folder)  # the language's own come in place of the common ones
        for template in sorted((_TEMPLATES / folder).glob("*.in"))
    }
    final = {"gitignore": ".gitignore", f"plugin.{language.suffix}": source, "test_plugin.py": f"test_{name}.py"}
    return {
        final.get(file, file): Template(template.read_text(encoding="utf-8")).substitute(values)
        for file, template in templates.items()
    }
