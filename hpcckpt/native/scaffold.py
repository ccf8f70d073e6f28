"""Write the CMake project of a new plugin, with nothing to edit."""

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


@dataclass(frozen=True, slots=True)
class _Language:
    folder: str
    cmake_languages: str
    suffix: str
    add_options: str = ""


LANGUAGES = {
    "c++": _Language("c++", "CXX", "cpp"),
    "c": _Language("c", "C", "c"),
    "tmci": _Language("tmci", "CXX", "cpp", "TMCI "),
}
"""What a plugin can be written in."""

_RESERVED = frozenset(
    {"all", "clean", "edit_cache", "help", "install", "linux", "package", "rebuild_cache", "test", "unix"}
)
"""Targets that CMake has, and names that compilers give another meaning."""


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
        If the name cannot be, or something stands in the way.
    """
    if not NAME.fullmatch(name) or name in _RESERVED:
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
    source = f"{name}.{language.suffix}"
    values = {
        "name": name,
        "class_name": "".join(part[:1].upper() + part[1:] for part in name.split("_")) + "Backend",
        "source": source,
        "languages": language.cmake_languages,
        "add_options": language.add_options,
        "python": sys.executable,
        "python_command": shlex.quote(sys.executable),
        "version": __version__,
    }
    templates = {
        template.name.removesuffix(".in"): template
        for folder in ("common", language.folder)  # the language's own come in place of the common ones
        for template in sorted((_TEMPLATES / folder).glob("*.in"))
    }
    final = {"gitignore": ".gitignore", f"plugin.{language.suffix}": source}
    return {
        final.get(file, file): Template(template.read_text(encoding="utf-8")).substitute(values)
        for file, template in templates.items()
    }
