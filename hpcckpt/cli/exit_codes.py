"""The exit codes of the tool; any other non-zero code means failure too."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """How a verb ended."""

    OK = 0
    ERROR = 1
    USAGE = 2
    CORRUPT = 3
    NOTHING_FOUND = 4
    DIFFERENT = 5
    PARTLY_DONE = 6
    NO_SPACE = 7
    BUSY = 8
    REQUEUE = 75
    INTERRUPTED = 130
