"""What the engine needs of a group of ranks, whatever carries the messages.

`agree` and `on_root` are the only ways in which code that may fail crosses ranks: when it fails on
one rank, every rank raises the same error, and no rank is left waiting.  They carry text, never live
exceptions.

Collective operations are made of point-to-point messages along binomial trees, and every wait is one loop
(:func:`hpcckpt.collective.waits.wait_until`): so a rank that waits knows which call the others are in, and for
how long it waits.  A transport is two methods: post a message, and take in what has come.
"""

from __future__ import annotations

import contextlib
import operator
import os
from abc import ABC, abstractmethod
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

from hpcckpt.collective import launchers
from hpcckpt.collective.calls import Calls
from hpcckpt.collective.deadlines import Patience
from hpcckpt.collective.notes import NOTES, Call
from hpcckpt.collective.outcomes import capture, first_failures
from hpcckpt.collective.waits import wait_until
from hpcckpt.core.system import CLOCK, EXECUTOR, Clock, Executor
from hpcckpt.errors import collective_error

T = TypeVar("T")
_PIECES = "pieces"


class _Piece(NamedTuple):
    """A message of a collective operation: of which call, and of which of its operations."""

    call: Call
    operation: int
    value: Any


class Message(NamedTuple):
    """A value from another rank."""

    source: int
    value: Any


class Communicator(ABC):
    """A group of ranks that call collective operations in the same order.

    Attributes
    ----------
    rank, size : int
        This process' index in the group, and the number of ranks.
    clock, executor : Clock, Executor
        The time and the threads of this rank.
    """

    rank: int
    size: int

    def __init__(self, patience: Patience | None = None, clock: Clock = CLOCK, executor: Executor = EXECUTOR) -> None:
        self.clock, self.executor = clock, executor
        self.patience = patience or Patience()
        self.calls = Calls(self)
        self._raw: deque[tuple[int, Any]] = deque()
        self._messages: dict[str, deque[Message]] = defaultdict(deque)
        self._pieces: dict[tuple[int, int, int], Any] = {}

    @property
    def is_root(self) -> bool:
        """Whether this is rank 0, the one that decides."""
        return self.rank == 0

    @property
    def is_usable(self) -> bool:
        """Whether messages can be sent."""
        return True

    def lasting(self) -> contextlib.AbstractContextManager[None]:
        """Return a block in which what carries the messages is not ended by another thread. Independent."""
        return contextlib.nullcontext()

    # -- the transport -----------------------------------------------------------------------------

    @abstractmethod
    def _post(self, dest: int, message: tuple[str, Any]) -> None:
        """Send a message to a rank, and do not wait for it to arrive. Independent."""

    @abstractmethod
    def _take_in(self) -> None:
        """Append to `_raw` the source and the message of what has come, if anything. Independent."""

    @abstractmethod
    def abort(self, code: int) -> None:
        """End the whole job: a rank cannot be reached. Independent."""

    @abstractmethod
    def duplicate(self) -> Communicator:
        """Return a communicator of the same ranks whose messages cannot meet the caller's. Collective."""

    @abstractmethod
    def free(self) -> None:
        """Free a duplicate. Collective."""

    # -- messages ----------------------------------------------------------------------------------

    def send(self, dest: int, value: Any, channel: str = "") -> None:
        """Post a message to a rank, and do not wait for it to arrive. Independent."""
        self._post(dest, (channel, value))

    def receive(self, channel: str = "") -> Message | None:
        """Return the next message for this rank; ``None`` if none has arrived. Independent."""
        self.pump()
        messages = self._messages[channel]
        return messages.popleft() if messages else None

    def messages(self, channel: str) -> deque[Message]:
        """Return the messages that have arrived, the oldest first, for the caller to remove. Independent."""
        self.pump()
        return self._messages[channel]

    def pump(self) -> None:
        """Receive and sort the messages that have arrived. Independent."""
        self._take_in()
        while self._raw:
            source, (channel, value) = self._raw[0]
            if channel == _PIECES:
                self._pieces[value.call.number, value.operation, source] = value.value
                self._raw.popleft()
                self.calls.compare(source, value.call)
            elif channel == NOTES:
                self.calls.receive(source, value)
                self._raw.popleft()
            else:  # in one line: an interrupt neither loses nor doubles a message
                self._messages[channel].append(Message(self._raw.popleft()[0], value))
                self.calls.compare(source, getattr(value, "call", None))
            if not self._raw:
                self._take_in()

    def forget_call(self) -> None:
        """Drop the messages of calls that are over. Independent."""
        if self._pieces:
            current = self.calls.n_calls
            self._pieces = {key: value for key, value in self._pieces.items() if key[0] > current}

    # -- collective operations -----------------------------------------------------------------------

    def _send_piece(self, dest: int, index: int, value: Any) -> None:
        assert self.calls.current is not None
        self.send(dest, _Piece(self.calls.current, index, value), _PIECES)

    def _piece(self, source: int, index: int) -> Any:
        """Wait for the message of a rank for an operation of this call. Collective."""
        assert self.calls.current is not None
        key = (self.calls.current.number, index, source)
        wait_until(self, lambda: key in self._pieces, lambda: [source])
        return self._pieces.pop(key)

    def _reduce(self, value: T, merge: Callable[[T, T], T]) -> T:
        """Return on root what all ranks' values merge to, in the order of the ranks. Collective."""
        index = self.calls.next_operation()
        for child in _children(self.rank, self.size):
            value = merge(value, self._piece(child, index))
        if not self.is_root:
            self._send_piece(_parent(self.rank), index, value)
        return value

    def _spread(self, value: T | None) -> T:
        """Return root's value. Collective."""
        index = self.calls.next_operation()
        if not self.is_root:
            value = self._piece(_parent(self.rank), index)
        for child in reversed(_children(self.rank, self.size)):  # the largest subtree first
            self._send_piece(child, index, value)
        return value  # type: ignore[return-value]

    @contextlib.contextmanager
    def _operation(self, kind: str, phase: str = "") -> Iterator[None]:
        """Be in an operation; outside of a call it is one by itself. Collective."""
        if self.calls.current is not None:
            yield
            return
        with self.calls.call(phase or kind, key=kind):
            yield

    def bcast(self, value: T | None) -> T:
        """Return root's value. Collective."""
        if self.size == 1:
            return value  # type: ignore[return-value]
        with self._operation("bcast"):
            return self._spread(value)

    def gather(self, value: T) -> list[T] | None:
        """Return all ranks' values, in rank order, on root; ``None`` elsewhere. Collective."""
        if self.size == 1:
            return [value]
        with self._operation("gather"):
            values = self._reduce([value], operator.add)
        return values if self.is_root else None

    def allgather(self, value: T) -> list[T]:
        """Return all ranks' values, in rank order. Collective."""
        if self.size == 1:
            return [value]
        with self._operation("allgather"):
            return self._spread(self._reduce([value], operator.add))

    def allreduce(self, value: T, merge: Callable[[T, T], T]) -> T:
        """Return what all ranks' values merge to, two by two in the order of the ranks. Collective."""
        if self.size == 1:
            return value
        with self._operation("allreduce"):
            return self._spread(self._reduce(value, merge))

    def distinct(self, values: Iterable[T]) -> list[T]:
        """Return the values of all ranks, each once, in the order of the ranks. Collective.

        They are merged on the way to root, so what all ranks have in common is sent once.
        """
        own = list(dict.fromkeys(values))
        if self.size == 1:
            return own
        with self._operation("distinct"):
            return self._spread(self._reduce(own, lambda some, others: list(dict.fromkeys((*some, *others)))))

    def barrier(self) -> None:
        """Wait for all ranks. Collective."""
        if self.size > 1:
            with self._operation("barrier"):
                self._spread(self._reduce(None, lambda *_: None))

    def agree(self, phase: str, fn: Callable[[], T]) -> T:
        """Run `fn` on every rank and return this rank's result, or raise the same error everywhere. Collective.

        Raises
        ------
        CollectiveError
            If `fn` failed on any rank; also of the failures' own class.
        """
        with self._operation("agree", phase) if self.size > 1 else contextlib.nullcontext():
            captured = capture(fn)
            failure = captured.outcome.failure
            failures = {self.rank: failure} if failure else {}
            if self.size > 1:
                failures = self._spread(self._reduce(failures, lambda some, others: first_failures({**some, **others})))
        self._raise_interrupt(captured.error)
        if failures:
            raise collective_error(phase, failures) from captured.error
        return captured.get()

    @contextlib.contextmanager
    def allowing(self, seconds: float) -> Iterator[None]:
        """Let ranks wait that much longer for one another: one of them may wait for another job. Collective."""
        patience = self.patience
        self.patience = replace(patience, peer_timeout_s=patience.peer_timeout_s + seconds)
        try:
            yield
        finally:
            self.patience = patience

    def on_root(self, phase: str, fn: Callable[[], T]) -> T:
        """Run `fn` on root and return its result on every rank, or raise the same error everywhere. Collective.

        Raises
        ------
        CollectiveError
            If `fn` failed on root; also of the failure's own class.
        """
        with self._operation("on_root", phase) if self.size > 1 else contextlib.nullcontext():
            captured = capture(fn) if self.is_root else None
            error = None if captured is None else captured.error
            outcome = self.bcast(None if captured is None else captured.outcome)
        self._raise_interrupt(error)
        if outcome.failure:
            raise collective_error(phase, {0: outcome.failure}) from error
        result: T = outcome.value
        return result

    def _raise_interrupt(self, error: BaseException | None) -> None:
        """Raise KeyboardInterrupt and SystemExit of this rank, now that the others know. Independent."""
        if error is not None and not isinstance(error, Exception):
            self.calls.known_error = error
            raise error

    def reduce_on_root(self, phase: str, fn: Callable[[], T]) -> list[T] | None:
        """Run `fn` on every rank; root gets all results in rank order. Collective.

        Raises
        ------
        CollectiveError
            If `fn` failed on any rank; the same on every rank.
        """
        value = self.agree(phase, fn)
        return self.gather(value)


def _parent(rank: int) -> int:
    """Return from whom a rank receives in a binomial tree. Pure."""
    return rank & (rank - 1)


def _children(rank: int, size: int) -> list[int]:
    """Return to whom a rank sends in a binomial tree: with their subtrees they follow it in rank order. Pure."""
    lowest = rank & -rank or size
    steps = (1 << k for k in range(size.bit_length()))
    return [rank + step for step in steps if step < lowest and rank + step < size]


class SerialCommunicator(Communicator):
    """One rank, no messages."""

    rank = 0
    size = 1

    def _post(self, dest: int, message: tuple[str, Any]) -> None:
        self._raw.append((dest, message))

    def _take_in(self) -> None:
        pass

    def abort(self, code: int) -> None:
        """End the process at once. Independent."""
        os._exit(code)

    def duplicate(self) -> SerialCommunicator:
        """Return another one. Collective."""
        return SerialCommunicator(self.patience, self.clock, self.executor)

    def free(self) -> None:
        """Do nothing. Collective."""


_world: tuple[int, int] | None = None


def world_is(rank: int, size: int) -> None:
    """Store rank and size as MPI has them: they take precedence over all variables. Independent."""
    global _world
    _world = (rank, size) if size > 1 else None  # a single process of MPI may still be one of many


def launch_problem() -> str:
    """Return how the launchers' variables differ, and what to do about it; "" if they do not. Independent."""
    return "" if _world else launchers.here().problem()


def usable_cores() -> int:
    """Return how many cores this rank may use: its affinity, shared with the ranks of its node. Independent."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    launch = launchers.here().launch
    local = 1 if launch is None or launch.local_size is None else launch.local_size.value
    return max(1, min(8, cores // max(1, local)))


def launched() -> tuple[int | None, int | None]:
    """Return rank and number of ranks, by MPI, or else the launcher; ``None`` for what is not known. Independent."""
    if _world is not None:
        return _world
    launch = launchers.here().launch
    rank, size = (None, None) if launch is None else (launch.rank, launch.size)
    return None if rank is None else rank.value, None if size is None else size.value


def launched_size() -> int | None:
    """Return how many ranks there are, by MPI, or else the launcher; ``None`` if neither is known. Independent."""
    return launched()[1]


def launched_rank() -> int | None:
    """Return which rank this is, by MPI, or else the launcher; ``None`` if neither is known. Independent."""
    return launched()[0]
