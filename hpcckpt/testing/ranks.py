"""Ranks as threads: the engine's promises tested at any rank count in one process."""

from __future__ import annotations

import pickle
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from hpcckpt.collective.communicator import Communicator
from hpcckpt.collective.deadlines import Patience
from hpcckpt.core.system import CLOCK, EXECUTOR, Clock, Executor

T = TypeVar("T")


class PeerGoneError(RuntimeError):
    """Another rank's thread ended with an exception while this one waited for it."""


class _Group:
    """What the threads of one group share: an inbox for each rank."""

    def __init__(self, size: int, timeout_s: float) -> None:
        self.size = size
        self.timeout_s = timeout_s
        self.is_broken = False
        self.inboxes: list[deque[tuple[int, bytes]]] = [deque() for _ in range(size)]
        self.n_sent = [0] * size
        self.duplicates: dict[int, _Group] = {}
        self.guard = threading.Lock()

    def abort(self) -> None:
        """Wake all ranks that wait in this group or in a duplicate of it."""
        self.is_broken = True
        for group in list(self.duplicates.values()):
            group.abort()

    @property
    def n_messages(self) -> int:
        """How many messages all ranks have sent; counted per rank, because ranks are threads."""
        return sum(self.n_sent)

    def duplicate(self, number: int) -> _Group:
        """Return the duplicate of this number, the same for all ranks."""
        with self.guard:
            found = self.duplicates.setdefault(number, _Group(self.size, self.timeout_s))
            found.is_broken = found.is_broken or self.is_broken
            return found


class ThreadCommunicator(Communicator):
    """One rank of a group of threads.

    Parameters
    ----------
    group : _Group
        Shared by all ranks.
    rank : int
        This thread's rank.
    patience : Patience, optional
        How long it waits; by default until the time-out of the group.
    clock, executor : Clock, Executor
        The clock and the threads of this rank.
    """

    def __init__(
        self,
        group: _Group,
        rank: int,
        patience: Patience | None = None,
        clock: Clock = CLOCK,
        executor: Executor = EXECUTOR,
    ) -> None:
        super().__init__(patience, clock, executor)
        self._group = group
        self.rank = rank
        self.size = group.size
        self._n_duplicates = 0

    def _post(self, dest: int, message: tuple[str, Any]) -> None:
        self._group.n_sent[self.rank] += 1
        self._group.inboxes[dest].append((self.rank, pickle.dumps(message)))

    def _take_in(self) -> None:
        """Take in what is in this rank's inbox.

        Raises
        ------
        PeerGoneError
            If nothing is there and another rank has ended with an exception.
        """
        inbox = self._group.inboxes[self.rank]
        if inbox:
            self._raw.append((inbox[0][0], pickle.loads(inbox.popleft()[1])))
        elif self._group.is_broken and not self._raw:
            raise PeerGoneError("a peer ended while this rank waited for it")

    def abort(self, code: int) -> None:
        """Wake all ranks, and end this one. Independent."""
        self.break_off()
        raise SystemExit(code)

    def duplicate(self) -> ThreadCommunicator:
        """Return a communicator on a separate group. Collective."""
        self._n_duplicates += 1
        group = self._group.duplicate(self._n_duplicates)
        return ThreadCommunicator(group, self.rank, self.patience, self.clock, self.executor)

    def free(self) -> None:
        """Do nothing. Collective."""

    def break_off(self) -> None:
        """Wake all ranks that wait for this one; they raise PeerGoneError. Independent."""
        self._group.abort()


def run_ranks(
    n_ranks: int,
    body: Callable[[Communicator], T],
    timeout_s: float = 180.0,
    patience: Patience | None = None,
    main_rank: int | None = None,
    clock: Clock = CLOCK,
) -> list[T]:
    """Run `body` on `n_ranks` ranks, one thread each; return all results.

    Results are in rank order. `main_rank`, if given, runs on the calling thread; if that is the main thread, Python
    handles signals there.
    `clock` is the clock of all ranks.

    Raises
    ------
    Exception
        The exception of the lowest rank that failed by itself, not because another rank ended.
    """
    group = _Group(n_ranks, timeout_s)

    def run(rank: int) -> T:
        comm = ThreadCommunicator(group, rank, patience or Patience().within(timeout_s), clock)
        try:
            return body(comm)
        except BaseException:
            comm.break_off()
            raise

    futures: list[Future[T]] = [Future() for _ in range(n_ranks)]
    with ThreadPoolExecutor(n_ranks) as pool:
        for rank in range(n_ranks):
            if rank != main_rank:
                futures[rank] = pool.submit(run, rank)
        if main_rank is not None:
            try:
                futures[main_rank].set_result(run(main_rank))
            except BaseException as own:  # noqa: BLE001 - it is raised below, with those of the other ranks
                futures[main_rank].set_exception(own)
    errors = [error for future in futures if (error := future.exception()) is not None]
    for error in [e for e in errors if not isinstance(e, PeerGoneError)] or errors:
        raise error
    return [future.result() for future in futures]
