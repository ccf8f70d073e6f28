"""The step: the command of a batch job that does the work, as a child process; signals are forwarded to its ranks.

1. Signals that request a stop (USR1, USR2, TERM) and the end of the child arrive through one pipe, so that none is lost
   between two checks.
2. An early signal waits until the ranks catch it: a rank that does not is killed by it.  If ranks are seen that do not
   catch it, it waits until the job is about to end; if no rank is seen, until the step has had time to start.
3. The scheduler signals the ranks if it can; else the launcher is signalled, which forwards it.  A failed attempt is
   repeated, and finally the launcher is signalled.
4. If the scheduler does not warn the job of its end, this process does: `lead_s` before it.
5. Signals are received also after the step has ended: a scheduler often sends a TERM to a job that requeues itself, and
   this process has to survive it.
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
from concurrent.futures import Future, ThreadPoolExecutor
from types import FrameType
from typing import NamedTuple

from hpcckpt.errors import OptionError, RetryError
from hpcckpt.jobs.launchers import KILL_ON_TERM, program_name
from hpcckpt.jobs.schedulers import Scheduler
from hpcckpt.jobs.signal_readiness import MARK, catches, catching, check_ranks, slurm_step
from hpcckpt.preemption.walltime import TimeLeft

ASKING = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM)
STARTUP_S = 120.0
"""Seconds after the start of a step in which it is not signalled if its ranks do not catch the signal."""
NEAR_END_S = 60.0
"""Seconds before the end of the job from which a step is signalled even if some ranks do not catch the signal."""
CHECK_S = 0.5
LATER_CHECK_S = 5.0
AGAIN_S = 2.0
N_TRIES = 5
MAX_PAUSE_S = 86400.0
Log = Callable[[str], None]


class StepResult(NamedTuple):
    """How a step ended.

    Attributes
    ----------
    code : int
        Its exit code; 128 plus the signal's number, if a signal killed the launcher.
    asked_by : str
        The name of the first signal that was to be forwarded to it; "" if there was none.
    seconds : float
        How long it took.
    term_at : float or None
        When the first TERM came, in seconds since 1970.
    """

    code: int
    asked_by: str
    seconds: float
    term_at: float | None = None


class Deadline:
    """When the job ends, if known, and how long before that this process signals the step, if it is to do so."""

    def __init__(self, at: float | None = None, lead_s: float | None = None) -> None:
        self.lead_s = lead_s
        self._end = TimeLeft(at)

    def seconds_to_end(self) -> float | None:
        """Return the seconds until the job ends; None if that is unknown. Independent."""
        return self._end.seconds()

    def left_s(self) -> float | None:
        """Return the seconds until the step is to be signalled by this process; None if it is not. Independent."""
        left_s = self.seconds_to_end()
        return None if left_s is None or self.lead_s is None else left_s - self.lead_s

    def is_near(self) -> bool:
        """Return True if the job is about to end, or if its end is unknown. Independent."""
        left_s = self.seconds_to_end()
        return left_s is None or left_s <= NEAR_END_S


class SignalPipe:
    """Receives signals, and the end of children, in a ``with`` block; made and used in the main thread."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self._before: dict[int, signal.Handlers | Callable[[int, FrameType | None], object] | int | None] = {}
        self._blocked: set[int | signal.Signals] = set()

    def __enter__(self) -> SignalPipe:
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        numbers = (*ASKING, signal.SIGCHLD, signal.SIGINT)  # Ctrl-C reaches the step as well: it is the step's
        for number in numbers:
            self._before[number] = signal.signal(number, _ignore)
        self._blocked = signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)  # a parent may have blocked some
        return self

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)
        signal.pthread_sigmask(signal.SIG_SETMASK, self._blocked)
        signal.set_wakeup_fd(-1)
        os.close(self._read)
        os.close(self._write)

    def wait(self, timeout_s: float | None) -> list[signal.Signals]:
        """Return the signals received; wait for one at most `timeout_s`. Independent."""
        select.select([self._read], [], [], timeout_s)
        with contextlib.suppress(BlockingIOError):
            return [signal.Signals(number) for number in os.read(self._read, 4096)]
        return []

    def pause(self, seconds: float) -> signal.Signals | None:
        """Wait `seconds`, or until a signal requests a stop, or Ctrl-C; return that signal, or None. Independent."""
        end = time.monotonic() + seconds
        while (left_s := end - time.monotonic()) > 0:
            asking = [received for received in self.wait(left_s) if received in {*ASKING, signal.SIGINT}]
            if asking:
                return next((each for each in (signal.SIGINT, signal.SIGTERM) if each in asking), asking[0])
        return None


def _ignore(number: int, frame: FrameType | None) -> None:
    """Do nothing: Python has written the signal's number to the pipe."""


class RunningStep:
    """A step in execution.

    Parameters
    ----------
    child : subprocess.Popen
        The launcher.
    launcher : str
        Its name.
    mark : str
        The value of a variable by which its processes are found.
    scheduler : Scheduler
        May be able to signal the ranks.
    log : callable
        Takes a line for people.
    """

    def __init__(
        self, child: subprocess.Popen[bytes], launcher: str, mark: str, scheduler: Scheduler, log: Log
    ) -> None:
        self.asked_by = ""
        self.term_at: float | None = None
        self._child = child
        self._launcher = launcher
        self._mark = mark
        self._scheduler = scheduler
        self._log = log
        self._began = time.monotonic()
        self._due: list[str] = []
        self._next_try = self._began
        self._n_tries = 0

    def wait_and_forward(self, signals: SignalPipe, deadline: Deadline, on_term: Callable[[], None]) -> StepResult:
        """Wait for the end of the step, and forward signals to it meanwhile. Independent.

        Parameters
        ----------
        signals : SignalPipe
            Receives the signals.
        deadline : Deadline
            When the step is asked to stop without a signal.
        on_term : callable
            Called once, after the first TERM, on a thread: a scheduler may take minutes for its answer.
        """
        reported: Future[None] | None = None
        with ThreadPoolExecutor(max_workers=1) as beside:
            while (code := self._child.poll()) is None:
                self._look(signals, deadline)
                if self.term_at is not None and reported is None:
                    reported = beside.submit(on_term)
        if reported is not None:
            reported.result()
        code = code if code >= 0 else 128 - code
        return StepResult(code, self.asked_by, time.monotonic() - self._began, self.term_at)

    def _look(self, signals: SignalPipe, deadline: Deadline) -> None:
        """Wait until there is something to do, and do it: take a signal, request a stop, forward a signal."""
        for received in signals.wait(self._pause_s(deadline)):
            if received in ASKING:
                self._ask(received.name, "received", deadline)
        left_s = deadline.left_s()
        if left_s is not None and left_s <= 0 and not self.asked_by:
            self._ask("SIGUSR1", f"{deadline.lead_s or 0.0:.0f} s before the end of the job", deadline)
        self._forward(deadline)

    def _pause_s(self, deadline: Deadline) -> float | None:
        """Return the seconds until something has to be done; None if only a signal can require that."""
        pauses = [self._next_try - time.monotonic()] if self._due else []
        left_s = deadline.left_s()
        if left_s is not None and not self.asked_by:
            pauses.append(left_s)
        return min(max(0.0, min(pauses)), MAX_PAUSE_S) if pauses else None

    def _ask(self, name: str, why: str, deadline: Deadline) -> None:
        if not self.asked_by:
            self.asked_by = name
        if name == "SIGTERM" and self.term_at is None:
            self.term_at = time.time()
        is_sent = self._may_signal(name.removeprefix("SIG"), deadline)
        later = f"its ranks do not catch it yet; it is passed on when they do, or {STARTUP_S:.0f} s after the start"
        self._log(f"signal={name} ({why}): {'the step is asked to save and to stop' if is_sent else later}")
        if name not in self._due:
            self._due.append(name)
            self._n_tries = 0

    def _forward(self, deadline: Deadline) -> None:
        if not self._due or time.monotonic() < self._next_try:
            return
        name = next((name for name in self._due if self._may_signal(name.removeprefix("SIG"), deadline)), "")
        if not name:
            self._next_try = time.monotonic() + (CHECK_S if self._is_starting() else LATER_CHECK_S)
            return
        try:
            is_sent = self._scheduler.signal_step(self._launcher, name.removeprefix("SIG"), slurm_step(self._mark))
        except RetryError as error:
            self._n_tries += 1
            self._next_try = time.monotonic() + AGAIN_S
            if self._n_tries < N_TRIES:
                return
            self._log(f"warning: {error}; {self._launcher} is signalled instead of its ranks")
            is_sent = False
        if not is_sent:
            self._signal(signal.Signals[f"SIG{self._translated(name.removeprefix('SIG'))}"])
        self._due.remove(name)

    def _signal(self, number: signal.Signals) -> None:
        """Signal the launcher; if it does not catch the signal, as a shell script does not, the processes that do."""
        targets = [] if catches(self._child.pid, number) else catching(self._mark, number)
        for pid in targets:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        if not targets:
            self._child.send_signal(number)

    def _may_signal(self, name: str, deadline: Deadline) -> bool:
        """Return True if the ranks catch the signal, or it cannot wait any longer."""
        if not self._is_starting() and deadline.is_near():
            return True
        ranks = check_ranks(self._mark, self._launcher, signal.Signals[f"SIG{self._translated(name)}"])
        return ranks == "ready" or (ranks == "unseen" and not self._is_starting())

    def _is_starting(self) -> bool:
        return time.monotonic() - self._began <= STARTUP_S

    def _translated(self, name: str) -> str:
        return "USR1" if name == "TERM" and self._launcher in KILL_ON_TERM else name


@contextlib.contextmanager
def started(words: Sequence[str], environ: Mapping[str, str], scheduler: Scheduler, log: Log) -> Iterator[RunningStep]:
    """Start a step, as a context; if it still runs at the end, it is killed. Independent.

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
        yield RunningStep(child, program_name(words), mark, scheduler, log)
    finally:
        if child.poll() is None:
            child.kill()
            child.wait()
