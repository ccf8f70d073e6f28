"""``hpcckpt plugin``: write storage plugins."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from hpcckpt.cli import options, output
from hpcckpt.cli.exit_codes import ExitCode
from hpcckpt.cli.lazy import SuggestingGroup
from hpcckpt.cli.parameter_types import PathType


@click.group("plugin", cls=SuggestingGroup)
def group() -> None:
    """Write a storage plugin in C, C++ or Python; check one."""


@group.command("new")
@click.argument("name")
@click.argument("directory", type=PathType(), required=False)
@click.option(
    "--lang", type=click.Choice(["c++", "c", "tmci", "python"]), default="c++", show_default=True, help="Written in."
)
@options.json_option
@options.quiet_option
def new(name: str, directory: Path | None, *, lang: str, is_json: bool, is_quiet: bool) -> int:
    """Write the project of a new plugin, with nothing to edit.

    It goes into DIRECTORY, by default ./NAME, and stores and loads as it is: copy and modify. NAME is what users
    pass: backend="plugin:NAME", or backend="NAME" for Python.  'tmci' gives the shape of TMCI's plugins, which needs
    TensorFlow; 'python' an installable package with a test that checks the contract of backends.
    """
    from hpcckpt.native.scaffold import commands, write_project

    where = directory or Path(name)
    files = write_project(name, lang, where)
    if is_json:
        output.write_json({"name": name, "lang": lang, "directory": where.absolute(), "files": [f.name for f in files]})
    else:
        for file in files:
            output.write_line(str(file))
    output.log(f"now: cd {shlex.quote(str(where))} && {commands(lang)}", is_quiet=is_quiet)
    return ExitCode.OK


@group.command("check")
@click.argument("files", type=PathType(str), nargs=-1, required=True)
@options.json_option
def check(files: tuple[str, ...], *, is_json: bool) -> int:
    """Load plugins in a process apart, and say what is in them or why they are refused."""
    from hpcckpt.native.plugins import inspect

    found = inspect(files)
    if is_json:
        output.write_json({"plugins": found})
    else:
        for each in found:
            for name, features in each.backends:
                output.write_line(f"{each.file}: {name} ({', '.join(features) or 'no features'})")
            if each.problem:
                output.write_line(f"{each.file}: {each.problem}")
    return ExitCode.ERROR if any(each.problem for each in found) else ExitCode.OK
