"""The exit code of a program on one rank that ends with an error of this library.

Python exits with 1 for any error.  `hpcckpt supervise` has to distinguish a locked run from other failures, and on
several ranks the job ends with the error's code too (`hpcckpt.collective.mpi`).
"""

from __future__ import annotations

import sys
from types import TracebackType

from hpcckpt.errors import HpcckptError


def exit_with_code_of_error() -> None:
    """Let this program exit with the code of an error that it does not catch. Independent."""
    earlier = sys.excepthook
    if getattr(earlier, "exits_with_code", False):
        return

    def report_and_exit(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        earlier(kind, error, trace)
        is_interactive = hasattr(sys, "ps1")  # an error must not end Python's prompt
        if isinstance(error, HpcckptError) and not is_interactive:
            raise SystemExit(error.exit_code)

    report_and_exit.exits_with_code = True  # type: ignore[attr-defined]
    sys.excepthook = report_and_exit
