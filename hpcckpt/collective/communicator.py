"""What the engine needs of a group of ranks, whatever carries the messages.

`agree` and `on_root` are the only ways in which code that may fail crosses ranks: when it fails on
one rank, every rank raises the same error, and nobody is left waiting.  They carry text, never live
exceptions.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from hpcckpt.collective import launchers
from hpcckpt.errors import Failure, MpiError, as_failure, collective_error

T = TypeVar("T")


class _Outcome(NamedTuple):
    value: Any
    failure: Failure | None


class Message(NamedTuple):
    """What came from another rank."""

    source: int
    value: Any


def _attempt(fn: Callable[[], T]) -> tuple[_Outcome, BaseException | None]:
    try:
        return _Outcome(fn(), None), None
    except BaseException as error:  # noqa: BLE001 - also an interrupt must reach the other ranks first
        return _Outcome(None, as_failure(error)), error


def _own_interrupt(error: BaseException | None) -> None:
    """Let KeyboardInterrupt and SystemExit of this rank go on, now that the others know."""
    if error is not None and not isinstance(error, Exception):
        raise error


class Communicator(ABC):
    """A group of ranks that call collective operations in the same order.

    Attributes
    ----------
    rank, size : int
        This process' index in the group, and the number of ranks.
    """

    rank: int
    size: int

    @property
    def is_root(self) -> bool:
        """Whether this is rank 0, the one that decides."""
        return self.rank == 0

    @abstractmethod
    def bcast(self, value: T | None) -> T:
        """Return root's value. Collective."""

    @abstractmethod
    def gather(self, value: T) -> list[T] | None:
        """Return all ranks' values, in rank order, on root; ``None`` elsewhere. Collective."""

    @abstractmethod
    def allgather(self, value: T) -> list[T]:
        """Return all ranks' values, in rank order. Collective."""

    @abstractmethod
    def barrier(self) -> None:
        """Wait for all ranks. Collective."""

    @abstractmethod
    def send(self, dest: int, value: Any) -> None:
        """Post a message to a rank, and do not wait for it to arrive. Independent."""

    @abstractmethod
    def receive(self) -> Message | None:
        """Return the next message that has come for this rank; ``None`` if there is none now. Independent."""

    @abstractmethod
    def abort(self, code: int) -> None:
        """End the whole job: a peer will not come. Independent."""

    @abstractmethod
    def duplicate(self) -> Communicator:
        """Return a communicator of the same ranks whose messages cannot meet the caller's. Collective."""

    @abstractmethod
    def free(self) -> None:
        """Give up a duplicate. Collective."""

    def agree(self, phase: str, fn: Callable[[], T]) -> T:
        """Run `fn` on every rank and return this rank's result, or raise alike everywhere. Collective.

        Raises
        ------
        CollectiveError
            If `fn` failed on any rank; also of the failures' own class.
        """
        outcome, error = _attempt(fn)
        failures = {rank: failure for rank, failure in enumerate(self.allgather(outcome.failure)) if failure}
        _own_interrupt(error)
        if failures:
            raise collective_error(phase, failures) from error
        result: T = outcome.value
        return result

    def on_root(self, phase: str, fn: Callable[[], T]) -> T:
        """Run `fn` on root and return its result on every rank, or raise alike everywhere. Collective.

        Raises
        ------
        CollectiveError
            If `fn` failed on root; also of the failure's own class.
        """
        outcome, error = _attempt(fn) if self.is_root else (None, None)
        outcome = self.bcast(outcome)
        _own_interrupt(error)
        if outcome.failure:
            raise collective_error(phase, {0: outcome.failure}) from error
        result: T = outcome.value
        return result

    def reduce_on_root(self, phase: str, fn: Callable[[], T]) -> list[T] | None:
        """Run `fn` on every rank; root gets all results in rank order. Collective.

        Raises
        ------
        CollectiveError
            If `fn` failed on any rank, alike on every rank.
        """
        value = self.agree(phase, fn)
        return self.gather(value)


class SerialCommunicator(Communicator):
    """One rank, no messages."""

    rank = 0
    size = 1

    def __init__(self) -> None:
        self._inbox: deque[Message] = deque()

    def bcast(self, value: T | None) -> T:
        """Return `value`. Collective."""
        return value  # type: ignore[return-value]

    def gather(self, value: T) -> list[T] | None:
        """Return ``[value]``. Collective."""
        return [value]

    def allgather(self, value: T) -> list[T]:
        """Return ``[value]``. Collective."""
        return [value]

    def barrier(self) -> None:
        """Return at once. Collective."""

    def send(self, dest: int, value: Any) -> None:
        """Put a message into our own inbox. Independent."""
        self._inbox.append(Message(dest, value))

    def receive(self) -> Message | None:
        """Return the next message of our own. Independent."""
        return self._inbox.popleft() if self._inbox else None

    def abort(self, code: int) -> None:
        """End the process at once. Independent."""
        os._exit(code)

    def duplicate(self) -> SerialCommunicator:
        """Return another one. Collective."""
        return SerialCommunicator()

    def free(self) -> None:
        """Do nothing. Collective."""


_world: tuple[int, int] | None = None


def world_is(rank: int, size: int) -> None:
    """Take down what MPI itself says: from then on it counts before any variable. Independent."""
    global _world
    _world = (rank, size) if size > 1 else None  # a process of MPI's that is alone may be one of many all the same


def launch_complaint() -> str:
    """Return in what the launchers' variables disagree, and what to do about it; "" if they agree. Independent."""
    return "" if _world else launchers.here().complaint()


def usable_cores() -> int:
    """Return how many cores this rank may use: its affinity, shared with the ranks of its node. Independent."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    launch = launchers.here().launch
    local = 1 if launch is None or launch.local_size is None else launch.local_size.value
    return max(1, min(8, cores // max(1, local)))


def launched_size() -> int | None:
    """Return how many ranks there are, by MPI, or else the launcher; ``None`` if neither says. Independent."""
    if _world is not None:
        return _world[1]
    launch = launchers.here().launch
    return None if launch is None or launch.size is None else launch.size.value


def launched_rank() -> int | None:
    """Return which rank this is, by MPI, or else the launcher; ``None`` if neither says. Independent."""
    if _world is not None:
        return _world[0]
    launch = launchers.here().launch
    return None if launch is None or launch.rank is None else launch.rank.value


def default_communicator() -> Communicator:
    """Return the group that ``comm=None`` means: MPI.COMM_WORLD under a launcher, else one rank. Collective.

    Raises
    ------
    MpiError
        If a launcher started several ranks and mpi4py is not installed or sees another number of them, or if it is
        not clear which launcher started them.
    """
    complaint = launch_complaint()
    if complaint:
        raise MpiError(complaint)
    n_ranks = launched_size()
    if n_ranks is None and launched_rank() is None:
        return SerialCommunicator()
    try:
        from hpcckpt.collective.mpi import world  # starts MPI
    except ImportError as error:
        if n_ranks == 1:
            return SerialCommunicator()
        raise MpiError(
            f"a launcher started {n_ranks or 'several'} ranks, but mpi4py cannot be loaded ({error}); "
            "pip install 'hpcckpt[mpi]', or pass comm="
        ) from error
    return world()


def as_communicator(comm: Any) -> Communicator:
    """Return a communicator of ours for what a user passes as ``comm``. Collective.

    Parameters
    ----------
    comm : None, Communicator, or mpi4py communicator
        ``None`` means the default; an mpi4py communicator is duplicated.

    Raises
    ------
    TypeError
        If it is something else.
    """
    if comm is None:
        return default_communicator()
    if isinstance(comm, Communicator):
        return comm.duplicate()
    if type(comm).__module__.partition(".")[0] == "mpi4py":
        from hpcckpt.collective.mpi import MpiCommunicator  # starts MPI

        return MpiCommunicator(comm)
    raise TypeError(f"comm must be None or an mpi4py communicator, not {type(comm).__qualname__}")
