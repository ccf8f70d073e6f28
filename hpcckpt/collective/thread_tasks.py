"""Functions that run on their own threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hpcckpt.collective.deadlines import POLL_S, wait_and_log
from hpcckpt.collective.outcomes import Captured, Outcome, capture
from hpcckpt.core.system import CLOCK, EXECUTOR, Clock, Executor, Flag, Thread
from hpcckpt.errors import Failure

GO_WITHIN_S = 1.0
"""A task with a `go` flag starts by itself after this time: Ctrl-C may have hit the thread that was to set it."""


class Task:
    """A function that runs on its own thread; what it returns or raises is kept.

    Parameters
    ----------
    fn : callable
        The function.
    wake : Flag
        Set when it has ended.
    go : Flag, optional
        It waits for this flag before it begins, so that the thread that starts it does not share the GIL with it yet.
    is_daemon : bool
        Whether the program may end before it.
    clock, executor : Clock, Executor
        Its time and thread.
    """

    def __init__(
        self,
        fn: Callable[[], Any],
        wake: Flag,
        go: Flag | None = None,
        *,
        is_daemon: bool = False,
        clock: Clock = CLOCK,
        executor: Executor = EXECUTOR,
    ) -> None:
        self._clock, self._executor = clock, executor
        self._go, self._is_daemon = go, is_daemon
        self._fn: Callable[[], Any] | None = fn
        self._wake = wake
        self._captured: Captured[Any] | None = None
        self._outcome: Outcome | None = None
        self._claim = executor.flag()  # cleared by the thread that runs it
        self._claim.set()
        self._thread: Thread | None = None
        self._is_started = False

    def start(self) -> Task:
        """Start it, once: a call that an interrupt broke off may be repeated. Independent."""
        if not self._is_started:
            thread = self._executor.thread(self._run, name="hpcckpt-task", is_daemon=self._is_daemon)
            self._thread = self._thread or thread
            try:
                thread.start()
            except RuntimeError:  # the interpreter shuts down, or there are too many threads: run it on this one
                self._go = None
                self._run(is_own_thread=False)
            self._is_started = True
        return self

    def _run(self, *, is_own_thread: bool = True) -> None:
        if not self._claim.clear():
            return  # another thread runs it
        self._thread = self._executor.current() if is_own_thread else None
        if self._go is not None:
            self._go.wait(GO_WITHIN_S)
        assert self._fn is not None
        self._captured = capture(self._fn)
        self._fn = None  # release at once what it refers to
        self._outcome = self._captured.outcome
        self._wake.set()

    @property
    def error(self) -> BaseException | None:
        """The exception that it raised, if it has."""
        return None if self._captured is None else self._captured.error

    @property
    def outcome(self) -> Outcome | None:
        """Its outcome; ``None`` while it runs. A thread that ended without one has failed."""
        thread = self._thread
        is_gone = thread is not None and thread.ident is not None and not thread.is_alive()  # first: it may end now
        if self._outcome is None and is_gone:
            return Outcome(None, Failure("collective", "the thread of this task ended without an outcome"))
        return self._outcome

    def join(self, text: str = "a background task") -> None:
        """Wait until it has ended; `text` names it in the log if that takes long. Independent."""
        self.start()
        if self._thread is not self._executor.current():
            wait_and_log(self._has_ended, text, self._clock)

    def _has_ended(self) -> bool:
        """Wait for a moment; return True if the task and its thread have ended."""
        thread = self._thread
        if thread is None or thread.ident is None:  # a thread runs it that has other work too
            self._clock.sleep(POLL_S)
            return self._outcome is not None
        thread.join(0.5)
        return not thread.is_alive()
