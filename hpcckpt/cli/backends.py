"""``hpcckpt backends``: what can put bytes on storage."""

from __future__ import annotations

import click

from hpcckpt.cli import options, output
from hpcckpt.cli.exit_codes import ExitCode
from hpcckpt.cli.output import Column

_COLUMNS = (Column("NAME"), Column("FROM"), Column("FEATURES"), Column("STATE"))


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
        rows = [[info.name, info.origin, ", ".join(info.features) or "-", info.problem or "ok"] for info in found]
        output.write_table(_COLUMNS, rows)
    return ExitCode.OK
