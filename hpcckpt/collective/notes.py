"""What ranks send one another about their calls. No behaviour."""

from __future__ import annotations

from typing import NamedTuple

from hpcckpt.errors import Failure

NOTES = "notes"
"""The channel of these messages."""


class Call(NamedTuple):
    """A collective call: its number, what must be equal on all ranks, and its text for messages."""

    number: int
    key: str
    text: str


class Status(NamedTuple):
    """The last calls of a rank, and what it does in the one that it is in."""

    calls: tuple[Call, ...]
    doing: str
    wants_answer: bool


class StatusSummary(NamedTuple):
    """Where root is, and ranks that may hold up the others, by rank; and whether a rank works, as far as root knows."""

    texts: dict[int, str]
    is_work_seen: bool = False


class Left(NamedTuple):
    """A rank left a call by an exception, after it had begun this number of the operations of the call."""

    call: Call
    operation: int
    rank: int
    failure: Failure
    is_interrupt: bool


class Ended(NamedTuple):
    """A rank makes no more calls after this number of them: it `text`."""

    n_calls: int
    text: str


class Broken(NamedTuple):
    """Nothing can be called any more, on all ranks."""

    failure: Failure
