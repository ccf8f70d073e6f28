"""Which collective call each rank is in, and what is done about a rank that is in another one, or in none.

1  (each)  Every collective call of a checkpointer has a number, the same on all ranks.  Its messages carry the number
           and a key: what must be equal on all ranks, such as ``restore(step=3)``.
2  (any)   A rank that receives a message of another key for a number that it has passed, or is at, knows that ranks
           called different things.  It sends that to root, root to all, and all raise `CollectiveMisuseError`.
3  (each)  A rank that waits sends root a note about its call and what it does there, after a second, then now and
           then; root answers with what it knows of the others.  Until then nothing is sent but what the call needs.
4  (each)  A rank that waits logs what it knows of the ranks that it waits for.
5  (root)  At the time-out: if all ranks are in this call, all raise `PeerTimeoutError`.  A rank that is blocked
           elsewhere cannot be reached: the job is aborted, with a message that names both ranks and calls.

A rank that leaves a call by an exception of its own reports that: the others raise it too.  One that ends its program
reports that, and the next call of the others is a misuse.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from hpcckpt.errors import (
    CollectiveError,
    CollectiveMisuseError,
    Failure,
    HpcckptError,
    PeerTimeoutError,
    as_failure,
    collective_error,
    error_of,
)

if TYPE_CHECKING:
    from hpcckpt.collective.communicator import Communicator

NOTES = "notes"
SPINS = 200
"""How often a wait only yields before it sleeps: most messages of a restore come within that."""
POLL_S = 0.0005
ROOT_DECIDES_S = 0.4
"""How long a rank that found a misuse lets root choose the text: less than an ending rank leaves to the others."""
N_REMEMBERED = 64
N_SENT = 8
N_NAMED = 8

_log = logging.getLogger("hpcckpt")


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a rank waits before it does what.

    Attributes
    ----------
    peer_timeout_s : float
        Until it gives up. A checkpointer sets it; other groups of ranks wait for ever.
    first_note_s, every_s : float
        Until it logs, and between two such lines.
    status_s, status_every_s : float
        Until it sends root a note, and between two notes.
    interrupt_s : float
        How long it still waits after an interrupt (Ctrl-C), so that ranks that are there complete the call.
    """

    peer_timeout_s: float = math.inf
    first_note_s: float = 10.0
    every_s: float = 30.0
    status_s: float = 1.0
    status_every_s: float = 5.0
    interrupt_s: float = 2.0

    def within(self, peer_timeout_s: float) -> Patience:
        """Return the same with another time-out, and at least one line before it. Pure."""
        half = peer_timeout_s / 2
        return replace(
            self,
            peer_timeout_s=peer_timeout_s,
            first_note_s=min(self.first_note_s, half),
            every_s=min(self.every_s, half),
            status_s=min(self.status_s, half / 4),
            status_every_s=min(self.status_every_s, half / 2),
        )


SILENT = Patience(first_note_s=math.inf)
"""Of ranks that wait for a person, or for what takes as long as it takes."""


class Call(NamedTuple):
    """A collective call: its number, what must be equal on all ranks, and its text for messages."""

    number: int
    key: str
    text: str


class _Status(NamedTuple):
    calls: tuple[Call, ...]
    doing: str
    wants_answer: bool


class _Known(NamedTuple):
    texts: dict[int, str]


class _Left(NamedTuple):
    number: int
    rank: int
    failure: Failure


class _Ended(NamedTuple):
    n_calls: int
    text: str


class _Broken(NamedTuple):
    failure: Failure


class Calls:
    """The collective calls of one communicator.

    Parameters
    ----------
    comm : Communicator
        Carries the messages.

    Attributes
    ----------
    current : Call or None
        The call that this rank is in.
    failure : Failure or None
        Why nothing can be called any more.
    """

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm
        self.current: Call | None = None
        self.failure: Failure | None = None
        self.n_operations = 0
        self.n_calls = 0
        self._recent: deque[Call] = deque(maxlen=N_REMEMBERED)
        self._seen: dict[int, Call] = {}
        self._early: dict[int, dict[int, Call]] = {}
        self._doing: dict[int, str] = {}
        self._ended: dict[int, _Ended] = {}
        self._left: dict[int, _Left] = {}
        self._told: dict[int, str] = {}
        self._shown: dict[int, str] = {}
        self._texts_until = 0.0
        self._n_news = 0
        self._is_reporting = False
        self._interrupt: BaseException | None = None

    @property
    def latest(self) -> tuple[Call, ...]:
        """The calls of this rank, the one that it is in or was in last at the end: it may be some ahead of root."""
        return tuple(self._recent)[-N_SENT:]

    # -- a call ------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def call(self, text: str, key: str = "") -> Iterator[None]:
        """Be in a collective call for the length of the block. Collective.

        Raises
        ------
        CollectiveMisuseError
            If another rank is in another call of this number.
        CollectiveError
            If another rank left this call by an exception.
        """
        self.enter(text, key)
        try:
            yield
        except BaseException as error:
            self.leave(error)
            raise
        interrupt = self.leave()
        if interrupt is not None:
            raise interrupt

    def enter(self, text: str, key: str = "") -> None:
        """Begin a call. Independent."""
        self.check()
        self.n_calls += 1
        self.current = Call(self.n_calls, key or text, text)
        self.n_operations = 0
        self._interrupt = None
        self._doing.pop(self._comm.rank, None)
        if self._comm.size > 1:
            self._recent.append(self.current)
            for rank, call in self._early.pop(self.n_calls, {}).items():
                self.compare(rank, call)
            self._comm.pump()
            self.check()

    def leave(self, error: BaseException | None = None) -> BaseException | None:
        """End a call; return an interrupt that came while it waited. Independent."""
        call, self.current = self.current, None
        interrupt, self._interrupt = self._interrupt, None
        self._comm.forget_call()
        is_own = error is not None and not isinstance(error, HpcckptError)  # ours are raised by all ranks
        is_noticed = self.n_operations > 0 or not isinstance(error, Exception)
        if is_own and is_noticed and call is not None and self._comm.size > 1 and self.failure is None:
            assert error is not None
            self._send_note(_Left(call.number, self._comm.rank, as_failure(error)))
        return interrupt

    def next_operation(self) -> int:
        """Return the index of the next operation of this call. Independent."""
        self.n_operations += 1
        return self.n_operations

    def check(self) -> None:
        """Raise what keeps this rank from its call. Independent."""
        if self.failure is not None:
            raise error_of(self.failure)
        call = self.current
        if call is None:
            return
        for rank, ended in self._ended.items():
            if ended.n_calls < call.number:
                self.give_up(_misuse(f"rank {rank} {ended.text}, and rank {self._comm.rank} is in {call.text}"), rank)
        left = self._left.get(call.number)
        if left is not None and left.rank != self._comm.rank:
            raise left_error(call, left.rank, left.failure)

    def end(self, text: str) -> None:
        """Report that this rank calls nothing any more: it `text`. Independent."""
        if self._comm.size > 1 and self.failure is None:
            self._send_note(_Ended(self.n_calls, text))

    def compare(self, rank: int, call: Call | None) -> None:
        """Take in which call another rank is in; it is a misuse if this rank called something else. Independent."""
        if call is None:
            return
        seen = self._seen.get(rank)
        if seen is None or call.number > seen.number:
            self._seen[rank] = call
            self._doing.pop(rank, None)
        if call.number > self.n_calls:  # compared when this rank is there
            self._early.setdefault(call.number, {})[rank] = call
            return
        own = next((own for own in reversed(self._recent) if own.number == call.number), None)
        if own is not None and own.key != call.key and self.failure is None and not self._is_reporting:
            pair = sorted([(self._comm.rank, own.text), (rank, call.text)])
            (first, its), (second, others) = pair
            self.give_up(_misuse(f"rank {first} is in {its}, rank {second} in {others}"), rank)

    def give_up(self, failure: Failure, rank: int = 0) -> None:
        """Let all ranks raise a failure, at this call or at their next one. Independent.

        Raises
        ------
        CollectiveError
            The failure, of its own class.
        """
        if not self._comm.is_root:
            self._comm.send(0, _Broken(failure), NOTES)
            self._wait_for_root()
        self._break(failure)
        if not self._comm.is_root and rank != 0:
            self._comm.send(rank, _Broken(failure), NOTES)
        assert self.failure is not None
        raise error_of(self.failure)

    def _wait_for_root(self) -> None:
        """Let root, if it is there, decide between what several ranks have found. Independent."""
        until = time.monotonic() + ROOT_DECIDES_S
        self._is_reporting = True
        try:
            while self.failure is None and time.monotonic() < until:
                self._comm.pump()
                time.sleep(POLL_S)
        finally:
            self._is_reporting = False

    def _break(self, failure: Failure) -> None:
        """Let nothing be called any more; root lets all ranks know. Independent."""
        if self.failure is None:
            self.failure = failure
            if self._comm.is_root:
                for rank in range(1, self._comm.size):
                    self._comm.send(rank, _Broken(failure), NOTES)

    # -- notes ---------------------------------------------------------------------------------------

    def _send_note(self, note: NamedTuple) -> None:
        """Send root a note, or root's to all. Independent."""
        if self._comm.is_root:
            for rank in range(1, self._comm.size):
                self._comm.send(rank, note, NOTES)
        else:
            self._comm.send(0, note, NOTES)

    def receive(self, source: int, note: NamedTuple) -> None:
        """Take in a note of another rank. Independent."""
        if isinstance(note, _Broken):
            self._break(note.failure)
        elif isinstance(note, _Ended):
            self._ended[source] = note
        elif isinstance(note, _Known):
            self._n_news += self._told != note.texts
            self._told = note.texts
        elif isinstance(note, _Left):
            self._take_left(note)
        elif isinstance(note, _Status):
            self._take_status(source, note)

    def _take_status(self, source: int, note: _Status) -> None:
        """Take in which call a rank is in, and what it does there; answer it. Root only."""
        if self.failure is None:
            with contextlib.suppress(CollectiveError):  # it is raised by `check`
                for call in note.calls:
                    self.compare(source, call)
        self._n_news += self._doing.get(source, "") != note.doing
        self._doing[source] = note.doing
        if note.wants_answer and self.failure is None:
            self._comm.send(source, _Known(self._texts()), NOTES)

    def _take_left(self, note: _Left) -> None:
        """Take in that a rank left a call; root passes it on, unless it has passed that call itself. Independent."""
        is_past = note.number < self.n_calls or (note.number == self.n_calls and self.current is None)
        if is_past or note.number in self._left:
            return
        self._left[note.number] = note
        if self._comm.is_root:
            self._send_note(note)

    def _texts(self) -> dict[int, str]:
        """Return where root is, and ranks that may hold up the others; made once in a while. Root only."""
        if time.monotonic() > self._texts_until:
            newest = max((call.number for call in self._seen.values()), default=0)
            others = [rank for rank in range(1, self._comm.size) if self._may_hold_up(rank, newest)]
            self._shown = {rank: self.where(rank) for rank in (0, *others[:N_NAMED])}
            self._texts_until = time.monotonic() + self._comm.patience.status_s
        return self._shown

    def _may_hold_up(self, rank: int, number: int) -> bool:
        seen = self._seen.get(rank)
        return seen is None or seen.number < number or bool(self._doing.get(rank))

    def _is_at(self, rank: int, call: Call | None) -> bool:
        seen = self._seen.get(rank)
        return call is not None and seen is not None and seen.number >= call.number

    def where(self, rank: int) -> str:
        """Return in words which call a rank is in, as far as known here. Independent."""
        if rank == self._comm.rank:
            last = self._recent[-1].text if self._recent else ""
            doing = self._doing.get(rank, "")
            return f"is in {self.current.text}{f' ({doing})' if doing else ''}" if self.current else _outside(last)
        if rank in self._ended:
            return self._ended[rank].text
        seen, doing = self._seen.get(rank), self._doing.get(rank, "")
        if seen is not None and self._recent and seen.number >= self._recent[-1].number:
            told = self._told.get(rank, "")
            return told if told.startswith("is in ") else f"is in {seen.text}{f' ({doing})' if doing else ''}"
        return self._told.get(rank) or _outside(seen.text if seen else "")

    # -- waiting -------------------------------------------------------------------------------------

    def wait_until(
        self,
        is_done: Callable[[], bool],
        missing: Callable[[], Sequence[int]],
        *,
        doing: Callable[[], str] = lambda: "",
        is_busy: Callable[[], bool] = lambda: False,
        text: str = "",
        give_up: Callable[[], None] | None = None,
        idle: Callable[[], None] | None = None,
    ) -> None:
        """Wait, and let nothing go wrong unnoticed meanwhile. Collective.

        Parameters
        ----------
        is_done : callable
            Whether the wait is over.
        missing : callable
            Returns the ranks that this one waits for, as far as known.
        doing : callable
            Returns what this rank does, for the others' logs.
        is_busy : callable
            Whether this rank itself still works: then it waits for nobody.
        text : str
            What it waits for, outside of a call.
        give_up : callable, optional
            Called at the time-out in place of what is done for a call.
        idle : callable, optional
            Called between two looks, in place of a short sleep.
        """
        waited = _Waited(self._comm.patience)
        while True:
            try:
                self._comm.pump()
                if self.failure is None and is_done():
                    return
                self.check()
                (idle or waited.idle)()
                if self._comm.size > 1:
                    self._tick(waited, missing, doing, is_busy, text, give_up)
            except KeyboardInterrupt as error:
                if self._comm.size == 1 or self.current is None or self._interrupt is not None:
                    raise
                self._interrupt = error
            if self._interrupt is not None and waited.is_interrupted_for_long():
                interrupt, self._interrupt = self._interrupt, None
                raise interrupt

    def announce(self, doing: str) -> None:
        """Let root know what this rank does from now on. Independent."""
        if not self._comm.is_root:
            self._comm.send(0, _Status(self.latest, doing, wants_answer=False), NOTES)

    def wait_for_all(self, is_done: Callable[[], bool]) -> None:
        """Wait until all ranks have come to what has no messages of ours yet. Collective."""
        waited = _Waited(self._comm.patience)
        while not is_done():
            waited.idle()
            if waited.is_log_due():
                _log.warning(
                    "hpcckpt: [rank %d] waits for %.0f s for all ranks to make a checkpointer: each must make one",
                    self._comm.rank, waited.seconds,
                )  # fmt: skip
            if waited.seconds > self._comm.patience.peer_timeout_s:
                _log.critical("hpcckpt: [rank %d] not all ranks made a checkpointer; the job is ended", self._comm.rank)
                self._comm.abort(1)

    def _tick(
        self,
        waited: _Waited,
        missing: Callable[[], Sequence[int]],
        doing: Callable[[], str],
        is_busy: Callable[[], bool],
        text: str,
        give_up: Callable[[], None] | None,
    ) -> None:
        own = doing()
        if own != self._doing.get(self._comm.rank, ""):
            self._doing[self._comm.rank] = own
            self._n_news += 1
        if waited.is_status_due() and not self._comm.is_root:
            self._comm.send(0, _Status(self.latest, own, wants_answer=True), NOTES)
        if is_busy() or waited.has_news(self._n_news):
            waited.begin_again()
        if waited.is_log_due():
            where = self.current.text if self.current else text
            _log.warning(
                "hpcckpt: [rank %d] in %s%s for %.0f s: waiting for other ranks: %s",
                self._comm.rank, where, f" ({own})" if own else "", waited.total, self._describe(missing()),
            )  # fmt: skip
        if waited.seconds > self._comm.patience.peer_timeout_s * (1.0 if self._comm.is_root else 1.5):
            # root first: it knows which ranks are missing
            (give_up or (lambda: self._time_out(missing())))()

    def _describe(self, missing: Sequence[int]) -> str:
        """Return in words where the ranks are that hold this one up. Independent."""
        busy = [rank for rank, doing in self._doing.items() if doing and rank not in missing]
        told = [rank for rank in self._told if rank not in missing and rank != self._comm.rank]
        ranks = dict.fromkeys([*missing, *busy, *told])
        return "; ".join(f"rank {rank} {self.where(rank)}" for rank in [*ranks][:N_NAMED])

    def _time_out(self, missing: Sequence[int]) -> None:
        """Let all raise the same error, where all can; else end the job. Independent."""
        call = self.current
        assert call is not None
        comm, timeout_s = self._comm, self._comm.patience.peer_timeout_s
        elsewhere = [rank for rank in (range(comm.size) if comm.is_root else missing) if not self._is_in(rank, call)]
        named = self._describe(elsewhere or missing)
        text = f"{call.text}: rank {comm.rank} waited {timeout_s:.0f} s (peer_timeout_s): {named}"
        if not elsewhere:
            self.give_up(Failure(PeerTimeoutError.kind, f"{text}; try again, or raise peer_timeout_s"))
        _log.critical("hpcckpt: [rank %d] %s; the job is ended, the committed steps are intact", comm.rank, text)
        comm.abort(1)

    def _is_in(self, rank: int, call: Call) -> bool:
        return rank == self._comm.rank or (self._is_at(rank, call) and rank not in self._ended)


class _Waited:
    """How long a wait has lasted, and what is due."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._began = self._first = first = time.monotonic()
        self._status_at = first + patience.status_s
        self._log_at = first + patience.first_note_s
        self._interrupted_at: float | None = None
        self._n = 0
        self._n_news = -1

    @property
    def total(self) -> float:
        """How long it has lasted."""
        return time.monotonic() - self._first

    def has_news(self, n_news: int) -> bool:
        """Return True if something has happened since the last time."""
        before, self._n_news = self._n_news, n_news
        return before not in {-1, n_news}

    @property
    def seconds(self) -> float:
        """How long this rank has waited without work of its own."""
        return time.monotonic() - self._began

    def begin_again(self) -> None:
        """Count from now on."""
        self._began = time.monotonic()

    def idle(self) -> None:
        """Yield at first, later sleep for a moment."""
        self._n += 1
        time.sleep(0 if self._n < SPINS else POLL_S)

    def is_status_due(self) -> bool:
        """Return True if a note to root is due, and set the time of the next one."""
        if time.monotonic() < self._status_at:
            return False
        self._status_at = time.monotonic() + self._patience.status_every_s
        return True

    def is_log_due(self) -> bool:
        """Return True if a line is due, and set the time of the next one."""
        if time.monotonic() < self._log_at:
            return False
        self._log_at = time.monotonic() + self._patience.every_s
        return True

    def is_interrupted_for_long(self) -> bool:
        """Return True if the time is over that a wait lasts after an interrupt."""
        if self._interrupted_at is None:
            self._interrupted_at = time.monotonic()
        return time.monotonic() - self._interrupted_at > self._patience.interrupt_s


def left_error(call: Call, rank: int, failure: Failure) -> CollectiveError:
    """Make the error of the ranks that are in a call that another rank left. Pure."""
    return collective_error(call.text, {rank: failure})


def _misuse(text: str) -> Failure:
    return Failure(CollectiveMisuseError.kind, f"{text}: all ranks must make the same calls, in the same order")


def _outside(last: str) -> str:
    since = f" since {last}" if last else ""
    return f"has not entered a call of hpcckpt{since}"
