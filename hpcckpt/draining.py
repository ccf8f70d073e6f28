"""Work that goes on in the background on all ranks, and ends the same for all of them.

A *matter* is one thing that every rank does its part of:

    a  (each)  the part runs on a thread, without MPI
    b  (each)  its outcome is reported to root, by whoever calls `Draining.poll`
    c  (root)  when all reports are there, root concludes, on a thread
    d  (each)  the answer reaches every rank, and is settled there on the thread that polls

MPI is called by the polling thread alone, so MPI_THREAD_SINGLE is enough.  Root concludes matters in
the order of their numbers; parts may overlap.  A part that fails reports its failure like a result: no
thread is ever lost.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from hpcckpt.collective.communicator import Communicator
from hpcckpt.collective.deadlines import POLL_S, wait_and_log
from hpcckpt.collective.exchange import Exchange
from hpcckpt.collective.notes import Call
from hpcckpt.collective.waits import wait_until
from hpcckpt.errors import Failure, as_failure

GO_WITHIN_S = 1.0
"""A part goes on after that by itself: whoever was to let it may have been interrupted by Ctrl-C."""
DRAIN_NICE = 15
"""How far the threads that write in the background give way to the training: a thirtieth of a busy core is theirs."""

_log = logging.getLogger("hpcckpt")


class Flag:
    """What one thread waits for and another sets; a wait takes it back.

    Not a `threading.Event`: a signal's exception (Ctrl-C) that falls into one of its methods may leave its lock locked,
    and then whoever sets it next hangs.  This is a lock alone, whose methods no signal can cut in two.
    """

    def __init__(self) -> None:
        self._unset = threading.Lock()
        self._unset.acquire()

    def set(self) -> None:
        """Let the one who waits, or waits next, go on."""
        with contextlib.suppress(RuntimeError):  # it is set
            self._unset.release()

    def clear(self) -> None:
        """Take it back."""
        self._unset.acquire(blocking=False)

    def wait(self, timeout_s: float = -1.0) -> None:
        """Wait until it is set, so long at most, and take it back."""
        self._unset.acquire(timeout=timeout_s)


class Outcome(NamedTuple):
    """What a part or a conclusion came to: a value, or a failure."""

    value: Any
    failure: Failure | None


class Task:
    """A function that runs on a thread of its own; its outcome is kept, whatever it raises.

    Parameters
    ----------
    fn : callable
        The function.
    wake : Flag
        Set when it has ended.
    go : Flag, optional
        What it waits for before it begins: so that the thread that starts it is not slowed down (they share the GIL).
    is_daemon : bool
        Whether the program may end before it.
    """

    def __init__(self, fn: Callable[[], Any], wake: Flag, go: Flag | None = None, *, is_daemon: bool = False) -> None:
        self._go, self._is_daemon = go, is_daemon
        self._fn: Callable[[], Any] | None = fn
        self._wake = wake
        self._outcome: Outcome | None = None
        self.error: BaseException | None = None
        self._claim = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_started = False

    def start(self) -> Task:
        """Start it, once: a call that an interrupt broke off may be repeated. Independent."""
        if not self._is_started:
            thread = threading.Thread(target=self._run, name="hpcckpt-drain", daemon=self._is_daemon)
            self._thread = self._thread or thread
            try:
                thread.start()
            except RuntimeError:  # the interpreter is shutting down, or no thread can be had: then here and now
                self._go = None
                self._run(is_own_thread=False)
            self._is_started = True
        return self

    def _run(self, *, is_own_thread: bool = True) -> None:
        if not self._claim.acquire(blocking=False):
            return  # another thread runs it
        self._thread = threading.current_thread() if is_own_thread else None
        if self._go is not None:
            self._go.wait(GO_WITHIN_S)
        try:
            assert self._fn is not None
            outcome = Outcome(self._fn(), None)
        except BaseException as error:  # noqa: BLE001 - whatever it is, the other ranks must hear of it
            outcome, self.error = Outcome(None, as_failure(error)), error
        self._fn = None  # what it holds is let go of at once
        self._outcome = outcome
        self._wake.set()

    @property
    def outcome(self) -> Outcome | None:
        """What it came to; ``None`` while it runs. A thread that died without a word has failed."""
        thread = self._thread
        is_gone = thread is not None and thread.ident is not None and not thread.is_alive()  # first: it may end now
        if self._outcome is None and is_gone:
            return Outcome(None, Failure("collective", "the thread that was to do this is gone"))
        return self._outcome

    def join(self, text: str = "a background task") -> None:
        """Wait until it has ended; `text` says in the log what lasts. Independent."""
        self.start()
        if self._thread is not threading.current_thread():
            wait_and_log(self._has_ended, text)

    def _has_ended(self) -> bool:
        """Wait for a moment; return whether it has ended, and its thread too."""
        thread = self._thread
        if thread is None or thread.ident is None:  # another thread runs it, for which it is not all that is to do
            time.sleep(POLL_S)
            return self._outcome is not None
        thread.join(0.5)
        return not thread.is_alive()


@dataclass(slots=True, eq=False)
class Matter:
    """One thing under way.

    Attributes
    ----------
    number : int
        The same on all ranks; rising.
    name : str
        What it is, for messages.
    part : Task
        This rank's part.
    conclude : callable
        Root's conclusion from the outcomes of all ranks, in rank order.
    settle : callable
        What each rank does with the outcome of the conclusion.
    call : Call or None
        The call that began it; root compares those of all ranks.
    """

    number: int
    name: str
    part: Task
    conclude: Callable[[Sequence[Outcome]], Any]
    settle: Callable[[Outcome], None]
    call: Call | None = None
    conclusion: Task | None = None
    is_reported: bool = False
    is_settled: bool = False


class Draining:
    """The matters of one group of ranks.

    Parameters
    ----------
    comm : Communicator
        The ranks.
    channel : str
        Of the messages; no other user of `comm` may have the same.
    """

    def __init__(self, comm: Communicator, channel: str) -> None:
        self.comm = comm
        self._exchange = Exchange(comm, channel)
        self._matters: dict[int, Matter] = {}
        self._wake = Flag()

    def start(
        self,
        number: int,
        name: str,
        part: Callable[[], Any],
        conclude: Callable[[Sequence[Outcome]], Any],
        settle: Callable[[Outcome], None],
        go: Flag | None = None,
    ) -> Matter:
        """Begin a matter, or return the one of this number; this rank's part waits for `go`. Independent."""
        matter = self._matters.get(number)
        if matter is None:
            call = self.comm.calls.current
            matter = self._matters[number] = Matter(number, name, Task(part, self._wake, go), conclude, settle, call)
        matter.part.start()
        return matter

    @property
    def matters(self) -> list[Matter]:
        """What is under way, the oldest first."""
        return [self._matters[number] for number in sorted(self._matters)]

    def poll(self) -> None:
        """Pass on what has come to an end since the last call; never blocks. Independent.

        An interrupt (Ctrl-C) may break it off at any line: nothing is removed before what is made of it is stored, and
        the next call repeats what was not finished.
        """
        self._wake.clear()
        self._exchange.poll()
        for matter in self.matters:
            if not matter.is_reported and matter.part.start().outcome is not None:
                self._exchange.report(matter.number, matter.part.outcome, matter.call)
                matter.is_reported = True
        while self._matters and self._settled_oldest():
            pass
        for matter in self.matters:
            if matter.call is not None:
                self.comm.calls.check_ended(matter.call)

    def _settled_oldest(self) -> bool:
        """Settle the oldest matter if its answer is there; return whether it was. Independent."""
        matter = self.matters[0]
        if not matter.is_settled:  # else an interrupt came while it was removed, and its answer may be gone
            if self.comm.is_root and not self._concluded(matter):
                return False
            answer = self._exchange.answer_to(matter.number)
            if answer is None:
                return False
            matter.settle(answer)  # may be repeated
            matter.is_settled = True
        self._exchange.forget(matter.number)
        self._matters.pop(matter.number, None)
        return True

    def _concluded(self, matter: Matter) -> bool:
        """Advance the conclusion of a matter; return whether it is answered. Root only."""
        if matter.conclusion is None:
            reports = self._exchange.reports(matter.number)
            if reports is None:
                return False
            matter.conclusion = Task(lambda: matter.conclude(reports), self._wake)
        if matter.conclusion.start().outcome is None:
            return False
        if self._exchange.answer_to(matter.number) is None:
            self._exchange.answer(matter.number, matter.conclusion.outcome)
        return True

    def wait(self, matter: Matter, text: str = "") -> None:
        """Wait until a matter is settled here; `text` says what for, outside of a call. Collective."""

        def is_settled() -> bool:
            self.poll()
            return matter.is_settled

        def missing() -> list[int]:
            return self._exchange.missing(matter.number) if self.comm.is_root else [0]

        wait_until(
            self.comm,
            is_settled,
            missing,
            doing=lambda: "writes its part" if matter.part.outcome is None else "",
            is_busy=lambda: matter.part.outcome is None or matter.conclusion is not None,
            text=text or matter.name,
            give_up=lambda: self._give_up(matter, missing()),
            idle=self._idle,
        )

    def wait_for_part(self, matter: Matter) -> None:
        """Wait until this rank's part of a matter has ended. Independent."""
        wait_until(
            self.comm,
            lambda: matter.part.outcome is not None,
            lambda: [self.comm.rank],
            doing=lambda: "writes its part",
            is_busy=lambda: True,
            text=matter.name,
            idle=self._idle,
        )

    def _idle(self) -> None:
        self._wake.wait(POLL_S if self.comm.size > 1 else 0.05)

    def _give_up(self, matter: Matter, missing: Sequence[int]) -> None:
        """End the job: a rank is silent, and what it holds cannot be known. Independent."""
        names = ", ".join(map(str, missing[:16])) + (" and more" if len(missing) > 16 else "")
        calls = self.comm.calls
        known = "; ".join(f"rank {rank} {calls.peers.where(rank)}" for rank in missing[:16])
        _log.critical(
            "hpcckpt: [rank %d] %s: no word from rank %s for %.0f s; the job is ended, the steps on storage are whole "
            "(rank %d %s; %s)",
            self.comm.rank, matter.name, names, self.comm.patience.peer_timeout_s,
            self.comm.rank, calls.peers.where(self.comm.rank) if calls.current else "waits for it", known,
        )  # fmt: skip
        self.comm.abort(1)
