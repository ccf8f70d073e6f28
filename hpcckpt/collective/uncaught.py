"""The end of a program by an exception that it does not catch: the exit code, and what is finished before.

Python exits with 1 for any error.  `hpcckpt supervise` has to distinguish a locked run from other failures, and on
several ranks the job ends with the error's code too (`hpcckpt.collective.mpi`): that ends this process at once, without
`atexit`, so what has to be finished is registered here.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from types import TracebackType

from hpcckpt.errors import HpcckptError

_log = logging.getLogger("hpcckpt")
_finishers: list[Callable[[], None]] = []


def before_abort(finish: Callable[[], None]) -> None:
    """Let a function be called before an uncaught exception of this rank ends the job. Independent."""
    _finishers.append(finish)


def finish_before_abort() -> None:
    """Call what was registered; log what fails. Independent."""
    for finish in _finishers:
        try:
            finish()
        except Exception as error:  # noqa: BLE001 - the job is to be ended all the same
            _log.error("hpcckpt: %s", error)


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
