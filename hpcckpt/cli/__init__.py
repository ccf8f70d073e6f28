"""The command line, ``hpcckpt``: one file per verb, found and loaded when it is used.

Data goes to stdout, as a table for people or with ``--json`` for programs; messages and progress
bars go to stderr.  The verbs decide nothing themselves: what they do is the library's.
"""

from __future__ import annotations

from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Parameters
    ----------
    argv : sequence of str, optional
        The words after the program's name; by default those of this process.
    """
    from hpcckpt.cli.app import run

    return run(argv)


__all__ = ["main"]
