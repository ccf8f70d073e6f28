"""Signals that request a stop of the job: a handler that sets a flag, and does nothing else.

A handler runs between any two instructions of the program: during a save, a message, an allocation.  So it only records
that a signal came; the program acts at the next batch boundary.  System calls that the signal interrupts are restarted,
for libraries that do not expect interruption (MPI, Horovod).

Children (the workers of data loaders) are not ranks.  A scheduler that signals all processes of a job signals them too,
and a worker that ends breaks the training before it has saved.  So they ignore the signals.  But SIGTERM is also how
their own parent ends them: they obey it if the parent sent it, or has ended, or has not received a signal itself, also
while they are blocked in a call.  The parent's handler sets a byte in memory that they share, in native code: the
function that Python calls runs only when the main thread returns from a call.  Without the native part the sender is
not known: then they obey a signal if the parent has received none, or is exiting.  A child may catch signals itself.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any, NamedTuple

from hpcckpt import native
from hpcckpt.errors import CodeError, OptionError

DEFAULT = ("SIGTERM", "SIGUSR1", "SIGUSR2")
PARENT_S = 10.0
"""Seconds by which the parent may receive a signal later than a child, if it was sent to both."""
PARENT_WITHOUT_SENDER_S = 0.25
"""The same where the sender is not known: a parent that ends its child waits for it."""
SUPERVISED = "HPCCKPT_STEP"
"""The variable that marks the processes of a step of ``hpcckpt supervise``."""
PROGRAM = "program"
"""The holder of the signals until there is a guard."""
OBEYED = frozenset({signal.SIGTERM, signal.SIGINT})
"""Signals that may be meant for a child; it ignores the others."""
_SIGNALLED, _ENDING = 0, 1


class Caught(NamedTuple):
    """The first signal that came: its name, and when (``time.monotonic``)."""

    name: str
    at: float


def signal_numbers(chosen: Iterable[str | int]) -> tuple[int, ...]:
    """Return the numbers of signals given by name (``"SIGUSR1"``, ``"USR1"``) or number. Independent.

    Raises
    ------
    OptionError
        Naming what is not a signal that can be caught.
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
    """Our handler of one signal. Other handlers may call it after its release: then it only calls the former handler.

    Attributes
    ----------
    before : object
        The handler that it replaced.
    callback : callable or None
        Called with each signal; None after release.
    """

    def __init__(self, before: Any, callback: Callable[[int], None]) -> None:
        self.before = before
        self.callback: Callable[[int], None] | None = callback

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Call the callback, then the former handler; without a callback, also the system's default action."""
        has_callback = self.callback is not None
        if self.callback is not None:
            self.callback(number)
        if callable(self.before):
            if not (has_callback and self.before is signal.default_int_handler):
                self.before(number, frame)
        elif not has_callback and self.before != signal.SIG_IGN:
            _act_as_system(number)


def _handler_after_release(number: int, before: Any) -> Any:
    """Return the handler to install when a signal is released.

    A job that is done must not be killed by a warning signal before its process has ended: it would count as failed.
    """
    is_warning = number in {signal.SIGUSR1, signal.SIGUSR2} and SUPERVISED in os.environ
    if before is None or before == signal.SIG_DFL:
        return signal.SIG_IGN if is_warning else signal.SIG_DFL
    return before


def _act_as_system(number: int) -> None:
    """Take the default action of a signal: usually, the process ends."""
    installed = signal.getsignal(number)
    signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)
    signal.signal(number, signal.SIG_DFL if installed is None else installed)


class _ChildHandler(NamedTuple):
    """The handler of a child without native code: it does not know who sent the signal."""

    parent_state: mmap.mmap
    parent_pid: int
    before: Any

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Call the former handler, or end the child, unless the parent has a signal or receives one."""
        deadline = time.monotonic() + PARENT_WITHOUT_SENDER_S
        while os.getppid() == self.parent_pid and not self.parent_state[_ENDING]:
            if self.parent_state[_SIGNALLED]:
                return
            if time.monotonic() > deadline:
                break
            time.sleep(0.01)
        if callable(self.before):
            self.before(number, frame)
            return
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)


def _without_parent(handler: Any) -> Any:
    """Return the handler of a child that catches signals itself, whatever its parent does."""
    return handler.before if isinstance(handler, _ChildHandler) else handler


class SignalFlag:
    """Records the first signal that came; one object per process, shared by all holders.

    Attributes
    ----------
    caught : Caught or None
        The first signal that came.
    """

    def __init__(self) -> None:
        self.caught: Caught | None = None
        self._links: dict[int, _Link] = {}
        self._below: dict[int, list[_Link]] = {}  # links under another handler, which may call them
        self._is_ignoring = False
        self._holders: set[object] = set()
        self._shared = mmap.mmap(-1, mmap.PAGESIZE)  # forked children see what is written here
        self._parent_state: mmap.mmap | None = None  # of a child: what its parent shares
        self._spared: set[int] = set()
        self._masks = threading.local()
        os.register_at_fork(
            before=self._block, after_in_parent=self._unblock, after_in_child=self._become_child_and_unblock
        )

    def catch(self, numbers: Iterable[int], holder: object) -> None:
        """Catch these signals from now on. Independent.

        Raises
        ------
        CodeError
            Outside of the main thread, where Python installs no handlers.
        """
        numbers = tuple(numbers)
        if not numbers:  # the signals then stay with the program
            return
        new = [number for number in numbers if number not in self._links]
        if new and threading.current_thread() is not threading.main_thread():
            raise CodeError("signals can be caught in the main thread only; there, or with signals=()")
        self._holders.discard(PROGRAM)
        self._holders.add(holder)
        for number in new:
            for link in self._below.get(number, ()):
                link.callback = self._remember
            self._links[number] = _Link(_without_parent(signal.getsignal(number)), self._remember)
            signal.signal(number, self._links[number])
            signal.siginterrupt(number, False)
            native.mark_signal(number, self._shared)

    def release(self, holder: object) -> None:
        """Restore the former handlers, if there is no other holder. Independent.

        A handler that was installed since then stays; if it calls ours, ours calls the former handler.
        """
        self._holders.discard(holder)
        if self._holders or threading.current_thread() is not threading.main_thread():
            return
        for number, link in self._links.items():
            for one in [link, *self._below.get(number, ())]:
                one.callback = None
            installed: Any = signal.getsignal(number)
            if installed is not link:
                self._below.setdefault(number, []).append(link)
            elif number in self._spared:
                self._spare(number, link.before)
            else:
                signal.signal(number, _handler_after_release(number, link.before))
        self._links.clear()
        self._shared[_SIGNALLED] = 0

    def ignore(self) -> None:
        """Ignore the signals until the process has ended. Independent."""
        self._shared[_ENDING] = 1
        self._is_ignoring = True
        if threading.current_thread() is threading.main_thread():
            for number in self._links:
                signal.signal(number, signal.SIG_IGN)

    def forget(self) -> None:
        """Forget the signal that came, for a program that continues nevertheless. Independent."""
        self.caught = None
        self._shared[:2] = bytes(2)

    def _remember(self, number: int) -> None:
        if self.caught is None:
            self.caught = Caught(signal.Signals(number).name, time.monotonic())
        self._shared[_SIGNALLED] = 1

    # -- in children ---------------------------------------------------------------------------------

    def ignore_in_worker(self) -> None:
        """Ignore the signals that are meant for the whole job, under the handlers that are installed. Independent."""
        if self._parent_state is None:
            if native.IMPLEMENTATION == "pure":  # without the sender, it would ignore its parent too
                return
            self._parent_state = mmap.mmap(-1, mmap.PAGESIZE)
            self._parent_state[_SIGNALLED] = 1  # it is not known: only the parent's signals are obeyed
        for number in signal_numbers(DEFAULT):
            self._spare(number, None if number in OBEYED else signal.SIG_IGN)

    def _block(self) -> None:
        """Let the signals of a child wait until it has its handlers: Python forgets those that come before that."""
        self._masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, {*self._links, *self._spared})
        for number in self._links:  # another handler may have replaced ours since
            native.mark_signal(number, self._shared)

    def _unblock(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._masks.before)

    def _become_child_and_unblock(self) -> None:
        try:
            self._become_child()
        finally:
            self._unblock()

    def _become_child(self) -> None:
        if not self._links:
            return
        self._parent_state, self._shared = self._shared, mmap.mmap(-1, mmap.PAGESIZE)
        self.caught = None
        self._holders.clear()
        for number, link in self._links.items():
            is_below = not self._is_ignoring and signal.getsignal(number) is not link
            link.callback = None
            if number not in OBEYED:
                link.before = signal.SIG_IGN
            elif not callable(link.before):  # also where a batch script has had it ignored: the parent waits
                link.before = signal.SIG_DFL
            if is_below:
                self._below.setdefault(number, []).append(link)
            with contextlib.suppress(ValueError):  # not the main thread of a main interpreter
                self._spare(number, None if is_below else link.before)
        self._links, self._is_ignoring = {}, False

    def _spare(self, number: int, handler: Any) -> None:
        """Have this child ignore a signal to the whole job; another calls `handler`, or with None what is installed."""
        assert self._parent_state is not None
        self._spared.add(number)
        if number in OBEYED and native.IMPLEMENTATION == "pure":
            before = signal.getsignal(number) if handler is None else handler
            ours: Any = _ChildHandler(self._parent_state, os.getppid(), before)
            if before is not None:  # a handler that is not Python's
                signal.signal(number, ours)
            return
        if handler is not None:
            signal.signal(number, handler)
        if number in OBEYED:
            native.end_unless_parent_has_signal(number, self._parent_state, PARENT_S, _parent_pid())


def _parent_pid() -> int:
    """Return the process that ends this one: with the start method ``forkserver`` not the one that forked it."""
    library = sys.modules.get("multiprocessing")  # it started this process, or is not loaded
    parent = None if library is None else library.parent_process()
    return os.getppid() if parent is None else int(parent.pid)


_flag: SignalFlag | None = None


def signal_flag() -> SignalFlag:
    """Return the flag of this process. Independent."""
    global _flag
    if _flag is None:
        _flag = SignalFlag()
    return _flag


@contextlib.contextmanager
def catching() -> Iterator[None]:
    """Catch the signals that request a stop during a block, so that the job can obey them later. Independent.

    It does nothing outside of the main thread, where Python installs no handlers.
    """
    holder, flag = object(), signal_flag()
    if threading.current_thread() is threading.main_thread():
        flag.catch(signal_numbers(DEFAULT), holder)
    try:
        yield
    finally:
        flag.release(holder)


def ignore_job_signals(worker_id: int = 0) -> None:  # noqa: ARG001 - data loaders pass it
    """Ignore, in a worker of a data loader, the signals that ask the whole job to stop. Independent.

    A scheduler sends them to all processes of a job, and a worker that ends makes the training fail before its last
    save. Workers forked by a program that catches signals ignore them already, unless they install handlers themselves,
    as PyTorch's do; workers that are spawned do not. The parent of a worker can still end it by SIGTERM. With the start
    method ``forkserver`` the server itself ends. Without the native part, spawned workers are left as they are.

    Parameters
    ----------
    worker_id : int
        Not used.

    Examples
    --------
    >>> loader = DataLoader(data, num_workers=4, worker_init_fn=hpcckpt.preemption.ignore_job_signals)
    """
    signal_flag().ignore_in_worker()
