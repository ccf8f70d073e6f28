"""``hpcckpt backends``: what can put bytes on storage."""

from __future__ import annotations

import textwrap

import click

from hpcckpt.backends.registry import BackendInfo
from hpcckpt.cli import options, output
from hpcckpt.cli.exit_codes import ExitCode
from hpcckpt.cli.output import Column

_COLUMNS = (Column("NAME"), Column("STATE"), Column("FROM, FEATURES"))
_WIDTH = 80


@click.command("backends")
@options.json_option
def command(*, is_json: bool) -> int:
    """List the storage backends that are installed.

    Other packages add backends by the entry-point group 'hpcckpt.backends', and plugins in C or C++ are
    found in the directories of HPCCKPT_PLUGIN_PATH; one that cannot be loaded is listed with what is wrong
    with it.
    """
    from hpcckpt.backends.plugin.listing import known_plugins
    from hpcckpt.backends.registry import known_backends

    found = (*known_backends(), *known_plugins())
    if is_json:
        output.write_json({"backends": found})
    else:
        before = "    problem  " if any(info.problem for info in found) else "    STATE  "
        width = _WIDTH - len(before) - max(len(info.name) for info in found)
        output.write_table(_COLUMNS, [row for info in found for row in _rows(info, width)])
    return ExitCode.OK


def _rows(info: BackendInfo, width: int) -> list[list[str]]:
    """Return the lines of a backend; its features, or what is wrong, have their own, so that 80 columns suffice."""
    more = [info.problem] if info.problem else textwrap.wrap(", ".join(info.features), width, break_on_hyphens=False)
    first = [info.name, "problem" if info.problem else "ok", info.origin]
    return [first, *(["", "", line] for line in more)]
