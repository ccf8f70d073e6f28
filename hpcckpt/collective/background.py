"""Work in the background that all ranks do together, with one outcome for all of them.

A collective task:

    a  (each)  `local` runs on a thread, without MPI
    b  (each)  its outcome is sent to root, by the thread that calls `BackgroundTasks.poll`
    c  (root)  when all outcomes have arrived, `reduce` runs on a thread
    d  (each)  its result is sent to every rank, and `on_result` is called with it on the thread that polls

Only the polling thread calls MPI, so MPI_THREAD_SINGLE is enough.  Root reduces tasks in the order of their
numbers; local functions of several tasks may overlap.  An exception in one of them is an outcome too, so every wait
ends.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from hpcckpt.collective.communicator import Communicator
from hpcckpt.collective.deadlines import POLL_S, Waited
from hpcckpt.collective.notes import Call
from hpcckpt.collective.outcomes import Outcome
from hpcckpt.collective.thread_tasks import Task
from hpcckpt.collective.waits import wait_until
from hpcckpt.core.system import Flag
from hpcckpt.errors import HpcckptError

DRAIN_NICE = 15
"""The niceness of threads that write in the background: they get about a thirtieth of a core that training uses."""

_log = logging.getLogger("hpcckpt")


@dataclass(slots=True, eq=False)
class CollectiveTask:
    """One task that all ranks do in the background.

    Attributes
    ----------
    number : int
        The same on all ranks; rising.
    name : str
        For messages.
    local : Task
        What this rank does.
    reduce : callable
        Root calls it with the outcomes of all ranks, in rank order.
    on_result : callable
        Every rank calls it with the outcome of `reduce`.
    call : Call or None
        The call that began it; root compares those of all ranks.
    """

    number: int
    name: str
    local: Task
    reduce: Callable[[Sequence[Outcome]], Any]
    on_result: Callable[[Outcome], None]
    call: Call | None = None
    reduction: Task | None = None
    is_reported: bool = False
    is_finished: bool = False


class BackgroundTasks:
    """The collective tasks of one group of ranks.

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
        self._tasks: dict[int, CollectiveTask] = {}
        self._wake = comm.executor.flag()

    def prepare(
        self,
        number: int,
        name: str,
        local: Callable[[], Any],
        reduce: Callable[[Sequence[Outcome]], Any],
        on_result: Callable[[Outcome], None],
        go: Flag | None = None,
    ) -> CollectiveTask:
        """Return a task for `begin`; its `local` will wait for `go`. Independent."""
        return CollectiveTask(number, name, self._task(local, go), reduce, on_result, self.comm.calls.current)

    def begin(self, task: CollectiveTask) -> CollectiveTask:
        """Begin a task, unless there is one of its number; return the one there is. Independent."""
        task = self._tasks.setdefault(task.number, task)
        task.local.start()
        return task

    def _task(self, fn: Callable[[], Any], go: Flag | None = None) -> Task:
        return Task(fn, self._wake, go, clock=self.comm.clock, executor=self.comm.executor)

    @property
    def tasks(self) -> list[CollectiveTask]:
        """What is not finished, the oldest first."""
        return [self._tasks[number] for number in sorted(self._tasks)]

    def poll(self) -> None:
        """Send and receive what has ended since the last call; never blocks. Independent.

        An interrupt (Ctrl-C) may break it off at any line: nothing is removed before its effect is stored, and the next
        call repeats what was not finished.
        """
        self._wake.clear()
        self._exchange.poll()
        for task in self.tasks:
            if not task.is_reported and task.local.start().outcome is not None:
                self._exchange.report(task.number, task.local.outcome, task.call)
                task.is_reported = True
        while self._tasks and self._oldest_is_finished():
            pass
        for task in self.tasks:
            if task.call is not None:
                self.comm.calls.check_ended(task.call)

    def _oldest_is_finished(self) -> bool:
        """Finish the oldest task if its result has arrived; return True if it had. Independent."""
        task = self.tasks[0]
        if not task.is_finished:  # else an interrupt came while it was removed, and its result may be gone
            if self.comm.is_root and not self._is_reduced(task):
                return False
            result = self._exchange.result_of(task.number)
            if result is None:
                return False
            task.on_result(result)  # may be repeated
            task.is_finished = True
        self._exchange.forget(task.number)
        self._tasks.pop(task.number, None)
        return True

    def _is_reduced(self, task: CollectiveTask) -> bool:
        """Start `reduce`, or send its result, when that is due; return True if the result was sent. Root only."""
        if task.reduction is None:
            reports = self._exchange.reports(task.number)
            if reports is None:
                return False
            task.reduction = self._task(lambda: task.reduce(reports))
        if task.reduction.start().outcome is None:
            return False
        if self._exchange.result_of(task.number) is None:
            self._exchange.send_result(task.number, task.reduction.outcome)
        return True

    def wait(self, task: CollectiveTask, text: str = "") -> None:
        """Wait until a task is finished on this rank; `text` names it outside of a call. Collective."""

        def is_finished() -> bool:
            self.poll()
            return task.is_finished

        def missing() -> list[int]:
            return self._exchange.missing(task.number) if self.comm.is_root else [0]

        wait_until(
            self.comm,
            is_finished,
            missing,
            doing=lambda: self._doing(task),
            is_busy=lambda: task.local.outcome is None or task.reduction is not None,
            text=text or task.name,
            give_up=lambda: self._give_up(task, missing()),
            idle=self._idle,
        )

    def wait_for_local(self, task: CollectiveTask) -> None:
        """Wait until the local function of a task has ended. Independent."""
        wait_until(
            self.comm,
            lambda: task.local.outcome is not None,
            lambda: [self.comm.rank],
            doing=lambda: "writes its part",
            is_busy=lambda: True,
            text=task.name,
            idle=self._idle,
        )

    def let_end(self, grace_s: float) -> None:
        """Wait until all tasks are finished, if the other ranks do the same; else give up. Independent.

        A rank calls it whose program leaves the run.  It waits while it works itself, and while a rank has reported
        lately that it works, to root or, by root's answer, to this rank; else for `grace_s`.
        """
        now, peers = self.comm.clock.monotonic, self.comm.calls.peers
        waited, until, ask_at = Waited(self.comm.patience, self.comm.clock), now() + grace_s, now()
        with self.comm.lasting():
            while self._tasks and self.comm.is_usable:
                own = next((text for text in map(self._doing, self.tasks) if text), "")
                peers.does(self.comm.rank, own)
                with contextlib.suppress(HpcckptError):  # that other ranks have ended
                    if now() >= ask_at:
                        ask_at = now() + grace_s / 2
                        self.comm.calls.announce(own, wants_answer=True)
                    self.poll()
                if own or peers.others_work():
                    until = now() + grace_s
                elif now() >= until:
                    return
                if waited.is_log_due():
                    _log.warning(
                        "hpcckpt: [rank %d] has waited for %.0f s for the saves in flight, to leave the run%s",
                        self.comm.rank, waited.total, f" ({own})" if own else "",
                    )  # fmt: skip
                self._idle()

    def _doing(self, task: CollectiveTask) -> str:
        """Return what this rank does for a task, for the others. Independent."""
        if task.local.outcome is None:
            return "writes its part"
        is_reduced = task.reduction is not None and task.reduction.outcome is None
        return "commits it" if is_reduced else ""

    def _idle(self) -> None:
        self._wake.wait(POLL_S if self.comm.size > 1 else 0.05)

    def _give_up(self, task: CollectiveTask, missing: Sequence[int]) -> None:
        """End the job: a rank sends nothing, and what it has written is unknown. Independent."""
        names = ", ".join(map(str, missing[:16])) + (" and more" if len(missing) > 16 else "")
        calls = self.comm.calls
        known = "; ".join(f"rank {rank} {calls.peers.where(rank)}" for rank in missing[:16])
        _log.critical(
            "hpcckpt: [rank %d] %s: no word from rank %s for %.0f s; the job is ended, the steps on storage are whole "
            "(rank %d %s; %s)",
            self.comm.rank, task.name, names, self.comm.patience.peer_timeout_s,
            self.comm.rank, calls.peers.where(self.comm.rank) if calls.current else "waits for it", known,
        )  # fmt: skip
        self.comm.abort(1)


# -- outcomes sent to root, and results sent to all ranks ---------------------------------------------------------


class _Message(NamedTuple):
    number: int
    value: Any
    call: Call | None = None


class Exchange:
    """The reports of all ranks to root, and root's results.

    Parameters
    ----------
    comm : Communicator
        The ranks.
    channel : str
        Of the messages; no other user of `comm` may have the same.
    """

    def __init__(self, comm: Communicator, channel: str) -> None:
        self.comm = comm
        self._channel = channel
        self._reports: dict[int, dict[int, Any]] = {}
        self._results: dict[int, Any] = {}
        self._last_finished = -1

    def report(self, number: int, value: Any, call: Call | None = None) -> None:
        """Send root this rank's outcome of a task, and the call that began it. Independent."""
        if self.comm.is_root:
            self._reports.setdefault(number, {})[0] = value
        else:
            self.comm.send(0, _Message(number, value, call), self._channel)

    def send_result(self, number: int, value: Any) -> None:
        """Send every rank the result of a task. Root only."""
        for rank in range(1, self.comm.size):
            self.comm.send(rank, _Message(number, value), self._channel)
        self._results[number] = value

    def poll(self) -> None:
        """Store the messages that have arrived. Independent."""
        messages = self.comm.messages(self._channel)
        while messages:
            source, (number, value, _) = messages[0]
            if number > self._last_finished:  # else sent a second time after an interrupt
                if self.comm.is_root:
                    self._reports.setdefault(number, {})[source] = value
                else:
                    self._results[number] = value
            messages.popleft()

    def missing(self, number: int) -> list[int]:
        """Return the ranks whose report has not arrived. Root only."""
        return sorted(set(range(self.comm.size)) - set(self._reports.get(number, {})))

    def reports(self, number: int) -> list[Any] | None:
        """Return all ranks' reports, in rank order; ``None`` until the last has arrived. Root only."""
        reports = self._reports.get(number, {})
        return [reports[rank] for rank in range(self.comm.size)] if len(reports) == self.comm.size else None

    def result_of(self, number: int) -> Any | None:
        """Return root's result; ``None`` until it has arrived. Independent."""
        return self._results.get(number)

    def forget(self, number: int) -> None:
        """Drop the messages of a task that is finished, and of all before it. Independent."""
        self._last_finished = max(self._last_finished, number)
        self._reports.pop(number, None)
        self._results.pop(number, None)
