"""Ranks as threads: the engine's promises tested at any rank count in one process."""

from __future__ import annotations

import pickle
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from hpcckpt.collective.communicator import Communicator, Message

T = TypeVar("T")


class PeerGoneError(RuntimeError):
    """Another rank's thread ended with an exception while this one waited for it."""


class _Group:
    """What the threads of one group share: a barrier and a slot for each rank."""

    def __init__(self, size: int, timeout_s: float) -> None:
        self.size = size
        self.barrier = threading.Barrier(size, timeout=timeout_s)
        self.slots: list[Any] = [None] * size
        self.inboxes: list[deque[Message]] = [deque() for _ in range(size)]
        self.n_messages = 0
        self.duplicates: list[_Group] = []

    def abort(self) -> None:
        """Wake whoever waits in this group or in a duplicate of it."""
        self.barrier.abort()
        for group in list(self.duplicates):
            group.abort()

    def wait(self) -> None:
        try:
            self.barrier.wait()
        except threading.BrokenBarrierError:
            raise PeerGoneError("a peer ended, or did not come to the same collective call") from None


class ThreadCommunicator(Communicator):
    """One rank of a group of threads.

    Parameters
    ----------
    group : _Group
        Shared by all ranks.
    rank : int
        This thread's rank.
    """

    def __init__(self, group: _Group, rank: int) -> None:
        self._group = group
        self.rank = rank
        self.size = group.size

    def _exchange(self, value: Any) -> list[Any]:
        group = self._group
        group.slots[self.rank] = value
        group.wait()
        values = list(group.slots)
        group.wait()
        return values

    def allgather(self, value: T) -> list[T]:
        """Return copies of all ranks' values: as between processes, nothing is shared. Collective."""
        return [pickle.loads(message) for message in self._exchange(pickle.dumps(value))]

    def bcast(self, value: T | None) -> T:
        """Return a copy of root's value. Collective."""
        message = self._exchange(pickle.dumps(value) if self.is_root else b"")[0]
        result: T = pickle.loads(message)
        return result

    def gather(self, value: T) -> list[T] | None:
        """Return copies of all ranks' values on root. Collective."""
        messages = self._exchange(pickle.dumps(value))
        return [pickle.loads(message) for message in messages] if self.is_root else None

    def barrier(self) -> None:
        """Wait for all ranks. Collective."""
        self._group.wait()

    def send(self, dest: int, value: Any) -> None:
        """Put a copy of a message into a rank's inbox. Independent."""
        self._group.n_messages += 1
        self._group.inboxes[dest].append(Message(self.rank, pickle.dumps(value)))

    def receive(self) -> Message | None:
        """Return the next message in this rank's inbox. Independent.

        Raises
        ------
        PeerGoneError
            If nothing is there and another rank has ended with an exception.
        """
        inbox = self._group.inboxes[self.rank]
        if inbox:
            source, value = inbox.popleft()
            return Message(source, pickle.loads(value))
        if self._group.barrier.broken:
            raise PeerGoneError("a peer ended while this rank waited for it")
        return None

    def abort(self, code: int) -> None:
        """Wake all ranks, and end this one. Independent."""
        self.break_off()
        raise SystemExit(code)

    def duplicate(self) -> ThreadCommunicator:
        """Return a communicator on a group of its own. Collective."""
        fresh = _Group(self.size, self._group.barrier._timeout or 60.0) if self.is_root else None  # type: ignore[attr-defined]
        if fresh is not None:
            self._group.duplicates.append(fresh)
        return ThreadCommunicator(self._exchange(fresh)[0], self.rank)

    def free(self) -> None:
        """Do nothing. Collective."""

    def break_off(self) -> None:
        """Wake all ranks that wait for this one; they raise PeerGoneError. Independent."""
        self._group.abort()


def run_ranks(n_ranks: int, body: Callable[[Communicator], T], timeout_s: float = 180.0) -> list[T]:
    """Run `body` on `n_ranks` ranks, one thread each, and return their results in rank order.

    Raises
    ------
    Exception
        The first rank's own exception; one that is not merely the echo of another rank's end.
    """
    group = _Group(n_ranks, timeout_s)

    def run(rank: int) -> T:
        comm = ThreadCommunicator(group, rank)
        try:
            return body(comm)
        except BaseException:
            comm.break_off()
            raise

    with ThreadPoolExecutor(n_ranks) as pool:
        futures = [pool.submit(run, rank) for rank in range(n_ranks)]
    errors = [error for future in futures if (error := future.exception()) is not None]
    for error in [e for e in errors if not isinstance(e, PeerGoneError)] or errors:
        raise error
    return [future.result() for future in futures]
