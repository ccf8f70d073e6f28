"""Which collective call each rank is in, and what is done about a rank that is in another one, or in none.

1  (each)  Every collective call of a checkpointer has a number, the same on all ranks.  Its messages carry the number
           and a key: what must be equal on all ranks, such as ``restore(step=3)``.
2  (any)   A rank that receives a message of another key for a number that it has passed, or is at, knows that ranks
           called different things.  It sends that to root, root to all, and all raise `CollectiveMisuseError`.
3  (each)  A rank that waits sends root a note about its call and what it does there, after a second, then now and
           then; root answers with what it knows of the others.  Until then nothing is sent but what the call needs.
4  (each)  A rank that waits logs what it knows of the ranks that it waits for (:mod:`hpcckpt.collective.waits`).
5  (root)  At the time-out: if all ranks are in this call, all raise `PeerTimeoutError`.  A rank that is blocked
           elsewhere cannot be reached: the job is aborted, with a message that names both ranks and calls.

A rank that leaves a call by an exception reports that: the others raise it too, where they need what that
rank has not done.  If root has completed the call meanwhile, nothing can be called any more.  A rank that ends its
program reports that, and the next call of the others is a misuse.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

from hpcckpt.collective import interrupts
from hpcckpt.collective.deadlines import POLL_S, Patience
from hpcckpt.collective.notes import NOTES, Broken, Call, Ended, Left, Status, StatusSummary
from hpcckpt.collective.peers import Peers
from hpcckpt.core.system import Clock
from hpcckpt.errors import (
    CollectiveError,
    CollectiveMisuseError,
    Failure,
    HpcckptError,
    as_failure,
    collective_error,
    error_of,
)

ROOT_DECIDES_S = 0.4
"""How long a rank that found a misuse lets root choose the text: less than an ending rank leaves to the others."""
N_REMEMBERED = 64
N_SENT = 8


class Carrier(Protocol):
    """What the calls of a group of ranks need of its communicator, `hpcckpt.collective.communicator.Communicator`."""

    rank: int
    size: int
    patience: Patience
    clock: Clock
    calls: Calls

    @property
    def is_root(self) -> bool:
        """Whether this is rank 0."""

    @property
    def is_usable(self) -> bool:
        """Whether messages can be sent."""

    def send(self, dest: int, value: Any, channel: str = "") -> None:
        """Post a message to a rank. Independent."""

    def pump(self) -> None:
        """Sort in what has come. Independent."""

    def forget_call(self) -> None:
        """Drop the messages of calls that are over. Independent."""

    def abort(self, code: int) -> None:
        """End the whole job. Independent."""

    def lasting(self) -> contextlib.AbstractContextManager[None]:
        """Return a block in which messages can be sent and received. Independent."""


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
    left : Left or None
        Which other rank's exception was raised here in the newest call.
    known_error : BaseException or None
        What this rank raises, and the other ranks know.
    ending : str
        What to report as the end of this rank if it waits meanwhile: others may wait for it in a call.
    has_begun : bool
        Whether this rank has begun, in this call, a task that all ranks finish in the background.
    peers : Peers
        What is known of the other ranks.
    """

    def __init__(self, comm: Carrier) -> None:
        self._comm = comm
        self.current: Call | None = None
        self.failure: Failure | None = None
        self.left: Left | None = None
        self.known_error: BaseException | None = None
        self.ending = ""
        self.peers = Peers(comm)
        self.n_operations = 0
        self.has_begun = False
        self.n_calls = 0
        self._recent: deque[Call] = deque(maxlen=N_REMEMBERED)
        self._early: dict[int, dict[int, Call]] = {}
        self._left: dict[int, Left] = {}
        self._is_reporting = False

    @property
    def last(self) -> Call | None:
        """The call that this rank is in, or was in last; ``None`` before the first."""
        return self._recent[-1] if self._recent else None

    @property
    def latest(self) -> tuple[Call, ...]:
        """The calls of this rank, the one that it is in or was in last at the end: it may be some ahead of root."""
        return tuple(self._recent)[-N_SENT:]

    @property
    def is_broken_off(self) -> bool:
        """Whether an error is of the call as a whole, and not of what was waited for in it."""
        return self.failure is not None or (self.current is not None and self.left is not None)

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
        with interrupts.deferred(self._comm.size), self._comm.lasting():
            try:
                self._enter(text, key)
                yield
            except BaseException as error:
                self._leave(error)
                raise
            self._leave()

    def _enter(self, text: str, key: str = "") -> None:
        """Begin a call. Independent."""
        self.check()
        self.n_calls += 1
        self.current = Call(self.n_calls, key or text, text)
        self.n_operations = 0
        self.has_begun = False
        self.left = None
        self.peers.begins_call()
        if self._comm.size > 1:
            self._recent.append(self.current)
            for rank, call in self._early.pop(self.n_calls, {}).items():
                self.compare(rank, call)
            self._comm.pump()
            self.check()

    def _leave(self, error: BaseException | None = None) -> None:
        """End a call; report an exception that is this rank's own. Independent."""
        call, self.current = self.current, None
        self._comm.forget_call()
        is_known, self.known_error = error is self.known_error, None
        is_own = not (is_known or isinstance(error, HpcckptError))  # ours are raised by all ranks
        is_interrupt = not isinstance(error, Exception)
        is_noticed = self.n_operations > 0 or is_interrupt
        if error is None and call is not None and call.number in self._left:
            self._completed(self._left[call.number])
        if error is not None and is_own and is_noticed and call and self._comm.size > 1 and self.failure is None:
            self._send_note(Left(call, self._position, self._comm.rank, as_failure(error), is_interrupt))

    @property
    def _position(self) -> int:
        """How far this rank is in its call: a rank that left at a later one has done what this rank comes to."""
        return self.n_operations + self.has_begun

    def next_operation(self) -> int:
        """Return the index of the next operation of this call, if all ranks can come to it. Independent."""
        self.n_operations += 1
        self.check()
        return self.n_operations

    def check(self) -> None:
        """Raise what keeps this rank from its call. Independent."""
        if self.failure is not None:
            raise error_of(self.failure)
        call = self.current
        if call is None:
            return
        self.check_ended(call)
        left = self._left.get(call.number)
        if left is not None and left.rank != self._comm.rank and left.operation <= self._position:
            self.left = left
            raise collective_error(call.text, {left.rank: left.failure})

    def check_ended(self, call: Call) -> None:
        """Raise if a rank has ended before it came to a call. Independent."""
        for rank, ended in self.peers.ended.items():
            if ended.n_calls < call.number:
                self.give_up(_misuse(f"rank {rank} {ended.text}, and rank {self._comm.rank} is in {call.text}"), rank)

    def end(self, text: str) -> None:
        """Report that this rank calls nothing any more: it `text`. Independent."""
        self.ending = ""
        if self._comm.size > 1 and self.failure is None:
            self._send_note(Ended(self.n_calls, text))

    def compare(self, rank: int, call: Call | None) -> None:
        """Take in which call another rank is in; it is a misuse if this rank called something else. Independent."""
        if call is None:
            return
        self.peers.saw(rank, call)
        if call.number > self.n_calls:  # compared when this rank is there
            self._early.setdefault(call.number, {})[rank] = call
            return
        own = next((own for own in reversed(self._recent) if own.number == call.number), None)
        if own is not None and own.key != call.key and self.failure is None and not self._is_reporting:
            texts = (own.text, call.text) if own.text != call.text else (own.key, call.key)
            pair = sorted(zip((self._comm.rank, rank), texts, strict=True))
            (first, its), (second, others) = pair
            self.give_up(_misuse(f"rank {first} is in {its}, rank {second} in {others}"), rank)

    # -- the end of all calls --------------------------------------------------------------------------

    def give_up(self, failure: Failure, rank: int = 0) -> None:
        """Let all ranks raise a failure, at this call or at their next one. Independent.

        Raises
        ------
        CollectiveError
            The failure, in its own class.
        """
        if self.failure is not None:  # all ranks know it, or will by root
            raise error_of(self.failure)
        if not self._comm.is_root:
            self._comm.send(0, Broken(failure), NOTES)
            self._wait_for_root()
        self._break(failure)
        if not self._comm.is_root and rank != 0:
            self._comm.send(rank, Broken(failure), NOTES)
        assert self.failure is not None
        raise error_of(self.failure)

    def _wait_for_root(self) -> None:
        """Let root, if it is there, decide between what several ranks have found. Independent."""
        clock = self._comm.clock
        until = clock.monotonic() + ROOT_DECIDES_S
        self._is_reporting = True
        try:
            while self.failure is None and clock.monotonic() < until:
                self._comm.pump()
                clock.sleep(POLL_S)
        finally:
            self._is_reporting = False

    def _break(self, failure: Failure) -> None:
        """Let nothing be called any more; root lets all ranks know. Independent."""
        if self.failure is None:
            self.failure = failure
            if self._comm.is_root:
                for rank in range(1, self._comm.size):
                    self._comm.send(rank, Broken(failure), NOTES)

    # -- notes ---------------------------------------------------------------------------------------

    def _send_note(self, note: NamedTuple) -> None:
        """Send root a note, or root's to all. Independent."""
        if self._comm.is_root:
            for rank in range(1, self._comm.size):
                self._comm.send(rank, note, NOTES)
        else:
            self._comm.send(0, note, NOTES)

    def announce(self, doing: str, *, wants_answer: bool = False) -> None:
        """Let root know what this rank does from now on. Independent."""
        if not self._comm.is_root:
            self._comm.send(0, Status(self.latest, doing, wants_answer), NOTES)

    def receive(self, source: int, note: NamedTuple) -> None:
        """Take in a note of another rank. Independent."""
        if isinstance(note, Broken):
            self._break(note.failure)
        elif isinstance(note, Ended):
            self.peers.ended.setdefault(source, note)  # the first says why
        elif isinstance(note, StatusSummary):
            self.peers.take_summary(note)
        elif isinstance(note, Left):
            self._take_left(note)
        elif isinstance(note, Status):
            self._take_status(source, note)

    def _take_status(self, source: int, note: Status) -> None:
        """Take in which call a rank is in, and what it does there; answer it. Root only."""
        if self.failure is None:
            with contextlib.suppress(CollectiveError):  # it is raised by `check`
                for call in note.calls:
                    self.compare(source, call)
        self.peers.does(source, note.doing)
        if note.wants_answer:
            self._comm.send(source, self.peers.summary(), NOTES)

    def _take_left(self, note: Left) -> None:
        """Take in that a rank left a call; root passes it on, or ends all if it has completed it. Independent."""
        number = note.call.number
        if number in self._left:
            return
        if number < self.n_calls or (number == self.n_calls and self.current is None):
            self._completed(note)
            return
        self._left[number] = note
        if self._comm.is_root:
            self._send_note(note)

    def _completed(self, note: Left) -> None:
        """Take in that this rank has completed a call that another one left; root ends all then. Independent."""
        if self._comm.is_root and note.rank != 0:
            text = f"rank {note.rank} left {note.call.text} by {note.failure.text}, and rank 0 has completed it"
            self._break(Failure(CollectiveMisuseError.kind, f"{text}: make a new checkpointer on all ranks"))


def _misuse(text: str) -> Failure:
    return Failure(CollectiveMisuseError.kind, f"{text}: all ranks must make the same calls, in the same order")
