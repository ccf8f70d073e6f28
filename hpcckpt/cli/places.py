"""Where the parts for building plugins are: ``hpcckpt --cmake-dir | --include-dir | …``, for use in build files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

import hpcckpt
from hpcckpt.errors import ConfigError


def cmake_dir() -> Path:
    """Return the directory of ``hpcckptConfig.cmake``."""
    return Path(hpcckpt.__file__).parent / "native" / "cmake"


def include_dir() -> Path:
    """Return the directory of the headers."""
    return Path(hpcckpt.__file__).parent / "native" / "include"


def tmci_include_dirs() -> str:
    """Return the directories of the headers that a plugin for TMCI includes, as CMake lists them.

    Raises
    ------
    ConfigError
        If TensorFlow is not installed.
    """
    from hpcckpt.native import tfinfo  # which loads the native library

    return ";".join([str(include_dir()), *tfinfo.resolve().include_dirs.values])


def library() -> Path:
    """Return the native library.

    Raises
    ------
    ConfigError
        If it was not built.
    """
    for root in hpcckpt.__path__:  # an editable install has it apart from the sources
        for file in sorted((Path(root) / "native").glob("_native.*.so")):
            return file
    raise ConfigError("the native part is not built: install a C++17 compiler and hpcckpt again")


def option(name: str, place: Callable[[], Path | str], text: str) -> Callable[[Any], Any]:
    """Return an option of the tool itself that prints a place, and ends."""

    def show(context: click.Context, _: click.Parameter, is_given: bool) -> None:
        if is_given and not context.resilient_parsing:
            click.echo(place())
            context.exit()

    return click.option(name, is_flag=True, is_eager=True, expose_value=False, callback=show, help=text)
