"""Signals that say the job is to stop: a handler that sets a flag, and does nothing else.

A handler runs between any two instructions of the program: in the midst of a save, of a message, of an allocation.  So
it only remembers that a signal came; what is to be done is done at the next batch boundary.  System calls that the
signal interrupts are restarted, for libraries that do not expect it (MPI, Horovod).

Children of this process that share its memory's beginning (``fork``: the workers of data loaders) are no ranks.  A
scheduler that signals all processes of a job signals them too, and a worker that ends breaks the training before it has
saved.  So they ignore the signals.  But SIGTERM is also how their own parent ends them: they obey it unless the
parent has had a signal itself, and from the moment on that it ends: also where they are blocked in a call.
"""

from __future__ import annotations

import contextlib
import functools
import mmap
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any, NamedTuple

from hpcckpt import native
from hpcckpt.errors import CodeError, OptionError

DEFAULT = ("SIGTERM", "SIGUSR1", "SIGUSR2")
PARENT_S = 0.25
"""How much later than a child its parent may get the signal that was sent to both."""
SUPERVISED = "HPCCKPT_STEP"
"""The variable that marks the processes of a step of ``hpcckpt supervise``."""
PROGRAM = "program"
"""Holds the signals until a guard does."""
_SIGNALLED, _ENDING = 0, 1
_Handler = Callable[[int, FrameType | None], Any]


class Caught(NamedTuple):
    """The first signal that came: its name, and when (``time.monotonic``)."""

    name: str
    at: float


def signal_numbers(chosen: Iterable[str | int]) -> tuple[int, ...]:
    """Return the numbers of signals given by name (``"SIGUSR1"``, ``"USR1"``) or number. Independent.

    Raises
    ------
    OptionError
        Naming what is no signal that can be caught.
    """
    if isinstance(chosen, str):
        chosen = [chosen]
    return tuple(dict.fromkeys(_number(one) for one in chosen))


def signal_names(numbers: Iterable[int]) -> list[str]:
    """Return the names of signals. Independent."""
    return [signal.Signals(number).name for number in numbers]


def _number(one: str | int) -> int:
    name = one if not isinstance(one, str) or one.upper().startswith("SIG") else f"SIG{one}"
    try:
        found = signal.Signals[name.upper()] if isinstance(name, str) else signal.Signals(name)
    except (KeyError, ValueError) as error:
        raise OptionError(f"signals: {one!r} – a name such as 'SIGUSR1', or a number") from error
    if found in {signal.SIGKILL, signal.SIGSTOP}:
        raise OptionError(f"signals: {found.name} cannot be caught")
    return int(found)


class _Link:
    """Our handler of one signal. Others may keep it in a chain for longer than we want it: then it passes on only.

    Attributes
    ----------
    before : object
        The handler that it took the place of.
    hear : callable or None
        Told of each signal; ``None`` when the signals are given back.
    """

    def __init__(self, before: Any, hear: Callable[[int], None]) -> None:
        self.before = before
        self.hear: Callable[[int], None] | None = hear

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Tell of a signal, and pass it on; what the system would do of itself is done only where nobody is told."""
        is_heard = self.hear is not None
        if self.hear is not None:
            self.hear(number)
        if callable(self.before):
            if not (is_heard and self.before is signal.default_int_handler):
                self.before(number, frame)
        elif not is_heard and self.before != signal.SIG_IGN:
            _leave_to_system(number)


def _afterwards(number: int, before: Any) -> Any:
    """Return the handler of a signal that nobody wants any more.

    A job that is done must not die of a warning that comes before its process has ended: it would count as failed.
    """
    is_warning = number in {signal.SIGUSR1, signal.SIGUSR2} and SUPERVISED in os.environ
    if before is None or before == signal.SIG_DFL:
        return signal.SIG_IGN if is_warning else signal.SIG_DFL
    return before


def _leave_to_system(number: int) -> None:
    """Do what happens where a signal has no handler: mostly, the process ends."""
    installed = signal.getsignal(number)
    signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)
    signal.signal(number, signal.SIG_DFL if installed is None else installed)


class SignalFlag:
    """Remembers that one of some signals came; one for all who want to know in this process.

    Attributes
    ----------
    caught : Caught or None
        The first signal that came.
    """

    def __init__(self) -> None:
        self.caught: Caught | None = None
        self._pid = os.getpid()
        self._links: dict[int, _Link] = {}
        self._holders: set[object] = set()
        self._shared = mmap.mmap(-1, mmap.PAGESIZE)  # forked children see what is written here
        os.register_at_fork(after_in_child=self._become_child)

    def catch(self, numbers: Iterable[int], holder: object) -> None:
        """Catch these signals from now on. Independent.

        Raises
        ------
        CodeError
            Outside of the main thread, where Python installs no handlers.
        """
        numbers = tuple(numbers)
        if not numbers:  # who wants none does not take them over from the program
            return
        new = [number for number in numbers if number not in self._links]
        if new and threading.current_thread() is not threading.main_thread():
            raise CodeError("signals can be caught in the main thread only; there, or with signals=()")
        self._holders.discard(PROGRAM)
        self._holders.add(holder)
        for number in new:
            self._links[number] = _Link(signal.getsignal(number), self._hear)
            signal.signal(number, self._links[number])
            signal.siginterrupt(number, False)

    def release(self, holder: object) -> None:
        """Give the signals back to whoever had them before, if nobody wants them any more. Independent.

        A handler that somebody has installed since then stays; if it passes on to ours, that goes to the one before.
        """
        self._holders.discard(holder)
        if self._holders or threading.current_thread() is not threading.main_thread():
            return
        for number, link in self._links.items():
            link.hear = None
            is_installed = signal.getsignal(number) is link  # else another handler passes on to it
            if is_installed:
                signal.signal(number, _afterwards(number, link.before))
        self._links.clear()

    def ignore(self) -> None:
        """Ignore the signals until the process has ended: it is on its way, and must not be hurried. Independent."""
        self._shared[_ENDING] = 1
        if threading.current_thread() is threading.main_thread():
            for number in self._links:
                signal.signal(number, signal.SIG_IGN)

    def forget(self) -> None:
        """Forget what came, for a program that goes on all the same. Independent."""
        self.caught = None
        self._shared[:2] = bytes(2)

    def _hear(self, number: int) -> None:
        if self.caught is None:
            self.caught = Caught(signal.Signals(number).name, time.monotonic())
        self._shared[_SIGNALLED] = 1

    # -- in forked children ------------------------------------------------------------------------

    def _become_child(self) -> None:
        for number, link in self._links.items():
            is_obeyed = number in {signal.SIGTERM, signal.SIGINT}
            is_installed = signal.getsignal(number) is link  # else another handler passes on to it
            is_systems = not callable(link.before)  # no handler of the program's: the system ends the process
            link.hear = None
            link.before = functools.partial(self._handle_in_child, link.before) if is_obeyed else signal.SIG_IGN
            if not is_installed:
                continue
            with contextlib.suppress(ValueError):  # not the main thread of a main interpreter
                signal.signal(number, link.before)
                if is_obeyed and is_systems:  # Python's handler would not run while the child is blocked in a call
                    native.end_unless_parent_has_signal(number, self._shared, PARENT_S)

    def _handle_in_child(self, before: Any, number: int, frame: FrameType | None) -> None:
        if self._is_parent_stopping():
            return
        if callable(before):
            before(number, frame)
            return
        signal.signal(number, signal.SIG_DFL)  # also where a batch script has had it ignored: the parent waits
        signal.raise_signal(number)

    def _is_parent_stopping(self) -> bool:
        """Say whether the signal was meant for the job, not for this child."""
        deadline = time.monotonic() + PARENT_S
        while not self._shared[_ENDING]:
            if self._shared[_SIGNALLED]:
                return True
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        return False


_flag: SignalFlag | None = None


def the_flag() -> SignalFlag:
    """Return the flag of this process. Independent."""
    global _flag
    if _flag is None:
        _flag = SignalFlag()
    return _flag


@contextlib.contextmanager
def listening() -> Iterator[None]:
    """Keep the signals that ask a job to stop until it can obey: libraries and models take long. Independent.

    Outside of the main thread, where Python installs no handlers, it does nothing.
    """
    holder, flag = object(), the_flag()
    if threading.current_thread() is threading.main_thread():
        flag.catch(signal_numbers(DEFAULT), holder)
    try:
        yield
    finally:
        flag.release(holder)
