"""Reports to root and answers from it, while all ranks go on with their work.

A blocking collective would make every rank wait for the slowest disk, and a non-blocking one must be
started in the same order on all ranks.  So what is said about saves in the background travels point to
point and under a number: each rank sends its report when it has one, root answers when it has all of
them, and nobody waits.  Messages move only while somebody calls `poll`, on the thread that calls MPI.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from hpcckpt.collective.communicator import Communicator


class _Letter(NamedTuple):
    number: int
    value: Any


class Exchange:
    """The reports and answers of one group of ranks.

    Parameters
    ----------
    comm : Communicator
        A duplicate of its own: nothing else may be sent through it.
    """

    def __init__(self, comm: Communicator) -> None:
        self.comm = comm
        self._reports: dict[int, dict[int, Any]] = {}
        self._answers: dict[int, Any] = {}
        self._done = -1

    def report(self, number: int, value: Any) -> None:
        """Send root the outcome of matter `number` on this rank. Independent."""
        if self.comm.is_root:
            self._reports.setdefault(number, {})[0] = value
        else:
            self.comm.send(0, _Letter(number, value))

    def answer(self, number: int, value: Any) -> None:
        """Send every rank the outcome of matter `number`. Root only."""
        for rank in range(1, self.comm.size):
            self.comm.send(rank, _Letter(number, value))
        self._answers[number] = value

    def poll(self) -> None:
        """Take in the messages that have come. Independent."""
        while (message := self.comm.receive()) is not None:
            number, value = message.value
            if number <= self._done:
                continue  # sent again after an interrupt
            if self.comm.is_root:
                self._reports.setdefault(number, {})[message.source] = value
            else:
                self._answers[number] = value

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
