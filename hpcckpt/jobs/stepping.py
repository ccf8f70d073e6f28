"""The step: the one command of a batch job that does the work, as a child; signals are handed on to its ranks.

1. What asks a job to stop (USR1, USR2, TERM) and the end of the child are heard by one pipe, so that none is lost
   between two looks.
2. What comes early waits until the ranks listen: one that does not catch a signal is killed by it.  Ranks that are
   seen, and do not, are waited for until the job is about to end; where none is to be seen, while the step is young.
3. The scheduler signals the ranks if it can; else the launcher is signalled, and hands it on.  What fails is tried
   again, and in the end the launcher is signalled all the same.
4. Where nobody warns a job of its end, we do: `lead_s` before it.
5. All of it goes on to be heard when the step has ended: who puts a job into the queue again is often sent a TERM for
   thanks, and has to outlive it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from hpcckpt.errors import OptionError, RetryError
from hpcckpt.jobs.listening import MARK, listen
from hpcckpt.jobs.schedulers import Scheduler

ASKING = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM)
YOUNG_S = 120.0
"""How long after its start a step is not signalled if its ranks do not listen."""
NEAR_END_S = 60.0
"""How long before the end of the job a step is signalled although ranks are seen that do not listen."""
LOOK_S = 0.5
LATER_LOOK_S = 5.0
AGAIN_S = 2.0
N_TRIES = 5
KILL_ON_TERM = frozenset({"mpirun", "mpiexec", "orterun", "prterun", "prun"})
"""Launchers that end their ranks on TERM instead of handing it on; USR1 says the same to a program that saves."""
Say = Callable[[str], None]


class Ended(NamedTuple):
    """How a step ended.

    Attributes
    ----------
    code : int
        Its exit code; 128 and the number, if a signal killed the launcher.
    asked_by : str
        The first signal that was to be handed on to it, by name; "" if there was none.
    seconds : float
        How long it took.
    term_at : float or None
        When the first TERM came, in seconds since 1970.
    """

    code: int
    asked_by: str
    seconds: float
    term_at: float | None = None


class Deadline(NamedTuple):
    """When the job ends, if that is known, and how long before that the step is told, if we are to tell it."""

    at: float | None = None
    lead_s: float | None = None

    def left_s(self) -> float | None:
        """Return the seconds until the step is to be told; ``None`` if it is not for us to. Independent."""
        return None if self.at is None or self.lead_s is None else self.at - self.lead_s - time.time()

    def is_near(self) -> bool:
        """Say whether the job is about to end; where nobody knows when it ends, it may be. Independent."""
        return self.at is None or self.at - time.time() <= NEAR_END_S


class Ears:
    """Hears signals, and the end of children, until it is left; made and used in the main thread."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self._before: dict[int, signal.Handlers | Callable[[int, FrameType | None], object] | int | None] = {}

    def __enter__(self) -> Ears:
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for number in (*ASKING, signal.SIGCHLD, signal.SIGINT):  # Ctrl-C reaches the step as well: it is the step's
            self._before[number] = signal.signal(number, _hear)
        return self

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)
        signal.set_wakeup_fd(-1)
        os.close(self._read)
        os.close(self._write)

    def wait(self, timeout_s: float | None) -> list[signal.Signals]:
        """Return what was heard; wait for it at most so long. Independent."""
        select.select([self._read], [], [], timeout_s)
        with contextlib.suppress(BlockingIOError):
            return [signal.Signals(number) for number in os.read(self._read, 4096)]
        return []

    def pause(self, seconds: float) -> signal.Signals | None:
        """Wait so long, or until something asks the job to stop; return what does. Independent."""
        end = time.monotonic() + seconds
        while (left_s := end - time.monotonic()) > 0:
            asking = [heard for heard in self.wait(left_s) if heard in ASKING]
            if asking:
                return signal.SIGTERM if signal.SIGTERM in asking else asking[0]
        return None


def _hear(number: int, frame: FrameType | None) -> None:
    """Do nothing: what counts is the byte in the pipe."""


class Step:
    """A step that runs.

    Parameters
    ----------
    child : subprocess.Popen
        The launcher.
    launcher : str
        Its name.
    mark : str
        What its processes are known by.
    scheduler : Scheduler
        Who may signal the ranks.
    say : callable
        Takes a line for people.
    """

    def __init__(
        self, child: subprocess.Popen[bytes], launcher: str, mark: str, scheduler: Scheduler, say: Say
    ) -> None:
        self.asked_by = ""
        self.term_at: float | None = None
        self._child = child
        self._launcher = launcher
        self._mark = mark
        self._scheduler = scheduler
        self._say = say
        self._began = time.monotonic()
        self._due: list[str] = []
        self._next_try = self._began
        self._n_tries = 0

    def attend(self, ears: Ears, deadline: Deadline, on_term: Callable[[], None]) -> Ended:
        """Wait for the end of the step, and forward signals to it meanwhile. Independent.

        Parameters
        ----------
        ears : Ears
            Receives the signals.
        deadline : Deadline
            When the step is asked to stop without a signal.
        on_term : callable
            Called once, after the first TERM.
        """
        is_term_reported = False
        while (code := self._child.poll()) is None:
            for heard in ears.wait(self._pause_s(deadline)):
                if heard in ASKING:
                    self._ask(heard.name, "heard", deadline)
            left_s = deadline.left_s()
            if left_s is not None and left_s <= 0 and not self.asked_by:
                self._ask("SIGUSR1", f"{deadline.lead_s or 0.0:.0f} s before the end of the job", deadline)
            self._hand_on(deadline)
            if self.term_at is not None and not is_term_reported:
                is_term_reported = True
                on_term()
        code = code if code >= 0 else 128 - code
        return Ended(code, self.asked_by, time.monotonic() - self._began, self.term_at)

    def _pause_s(self, deadline: Deadline) -> float | None:
        """Return how long nothing has to be done; ``None``: until something is heard."""
        pauses = [self._next_try - time.monotonic()] if self._due else []
        left_s = deadline.left_s()
        if left_s is not None and not self.asked_by:
            pauses.append(left_s)
        return max(0.0, min(pauses)) if pauses else None

    def _ask(self, name: str, why: str, deadline: Deadline) -> None:
        if not self.asked_by:
            self.asked_by = name
        if name == "SIGTERM" and self.term_at is None:
            self.term_at = time.time()
        is_sent = self._may_signal(name.removeprefix("SIG"), deadline)
        later = f"its ranks do not catch it yet; it is passed on when they do, or {YOUNG_S:.0f} s after the start"
        self._say(f"signal={name} ({why}): {'the step is asked to save and to stop' if is_sent else later}")
        if name not in self._due:
            self._due.append(name)
            self._n_tries = 0

    def _hand_on(self, deadline: Deadline) -> None:
        if not self._due or time.monotonic() < self._next_try:
            return
        name = self._due[0].removeprefix("SIG")
        if not self._may_signal(name, deadline):
            self._next_try = time.monotonic() + (LOOK_S if self._is_young() else LATER_LOOK_S)
            return
        try:
            is_sent = self._scheduler.signal_step(self._launcher, name)
        except RetryError as error:
            self._n_tries += 1
            self._next_try = time.monotonic() + AGAIN_S
            if self._n_tries < N_TRIES:
                return
            self._say(f"warning: {error}; {self._launcher} is signalled instead of its ranks")
            is_sent = False
        if not is_sent:
            self._child.send_signal(signal.Signals[f"SIG{self._translated(name)}"])
        self._due.pop(0)

    def _may_signal(self, name: str, deadline: Deadline) -> bool:
        """Say whether the step survives a signal, or has had its chance."""
        if not self._is_young() and deadline.is_near():
            return True
        ranks = listen(self._mark, self._launcher, signal.Signals[f"SIG{self._translated(name)}"])
        return ranks == "listening" or (ranks == "unseen" and not self._is_young())

    def _is_young(self) -> bool:
        return time.monotonic() - self._began <= YOUNG_S

    def _translated(self, name: str) -> str:
        return "USR1" if name == "TERM" and self._launcher in KILL_ON_TERM else name


@contextlib.contextmanager
def started(words: Sequence[str], environ: Mapping[str, str], scheduler: Scheduler, say: Say) -> Iterator[Step]:
    """Start a step; what still runs when it is left is killed. Independent.

    Raises
    ------
    OptionError
        If there is no such program.
    """
    mark = secrets.token_hex(8)
    try:
        child = subprocess.Popen(words, env={**environ, MARK: mark})
    except OSError as error:
        raise OptionError(f"{words[0]!r} cannot be started: {error.strerror}; is it on this node's PATH?") from error
    try:
        yield Step(child, Path(words[0]).name, mark, scheduler, say)
    finally:
        if child.poll() is None:
            child.kill()
            child.wait()
