"""``hpcckpt completion``: completion of verbs, options, paths and steps in a shell."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from hpcckpt.cli import output
from hpcckpt.cli.exit_codes import ExitCode

VARIABLE = "_HPCCKPT_COMPLETE"


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> int:
    """Print the code for completion in a shell.

    For bash and zsh put  eval "$(hpcckpt completion bash)"  into ~/.bashrc (zsh: ~/.zshrc); for fish write the
    output to ~/.config/fish/completions/hpcckpt.fish.
    """
    found = get_completion_class(shell)
    assert found is not None
    root = click.get_current_context().find_root().command
    made = found(root, {}, "hpcckpt", VARIABLE)
    output.write_line(made.source_template % made.source_vars())  # made.source() would run bash to learn its version
    return ExitCode.OK
