"""Reports to root and answers from it, while all ranks go on with their work.

A blocking collective would make every rank wait for the slowest disk, and a non-blocking one must be
started in the same order on all ranks.  So what is said about saves in the background travels point to
point and under a number: each rank sends its report when it has one, root answers when it has all of
them, and nobody waits.  Messages move only while somebody calls `poll`, on the thread that calls MPI.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from hpcckpt.collective.communicator import Communicator
from hpcckpt.collective.notes import Call


class _Letter(NamedTuple):
    number: int
    value: Any
    call: Call | None = None


class Exchange:
    """The reports and answers of one group of ranks.

    Parameters
    ----------
    comm : Communicator
        The ranks.
    channel : str
        Of the messages; no other user of `comm` may have the same.
    """

    def __init__(self, comm: Communicator, channel: str) -> None:
        self.comm = comm
        self._channel = channel
        self._reports: dict[int, dict[int, Any]] = {}
        self._answers: dict[int, Any] = {}
        self._done = -1

    def report(self, number: int, value: Any, call: Call | None = None) -> None:
        """Send root the outcome of matter `number` on this rank, and the call that began it. Independent."""
        if self.comm.is_root:
            self._reports.setdefault(number, {})[0] = value
        else:
            self.comm.send(0, _Letter(number, value, call), self._channel)

    def answer(self, number: int, value: Any) -> None:
        """Send every rank the outcome of matter `number`. Root only."""
        for rank in range(1, self.comm.size):
            self.comm.send(rank, _Letter(number, value), self._channel)
        self._answers[number] = value

    def poll(self) -> None:
        """Take in the messages that have come. Independent."""
        letters = self.comm.letters(self._channel)
        while letters:
            source, (number, value, _) = letters[0]
            if number > self._done:  # else sent again after an interrupt
                if self.comm.is_root:
                    self._reports.setdefault(number, {})[source] = value
                else:
                    self._answers[number] = value
            letters.popleft()

    def missing(self, number: int) -> list[int]:
        """Return the ranks whose report has not come yet. Root only."""
        return sorted(set(range(self.comm.size)) - set(self._reports.get(number, {})))

    def reports(self, number: int) -> list[Any] | None:
        """Return all ranks' reports, in rank order; ``None`` until the last has come. Root only."""
        reports = self._reports.get(number, {})
        return [reports[rank] for rank in range(self.comm.size)] if len(reports) == self.comm.size else None

    def answer_to(self, number: int) -> Any | None:
        """Return root's answer; ``None`` until it has come. Independent."""
        return self._answers.get(number)

    def forget(self, number: int) -> None:
        """Drop what came for a matter that is settled, and for all before it. Independent."""
        self._done = max(self._done, number)
        self._reports.pop(number, None)
        self._answers.pop(number, None)
