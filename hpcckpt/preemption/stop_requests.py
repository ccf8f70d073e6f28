"""Requests to stop a job: a signal, the end of its time, the file ``HALT``, or the program itself."""

from __future__ import annotations

import os
from pathlib import Path

from hpcckpt.core.durations import duration_text
from hpcckpt.preemption.agreement import BoundaryRequest
from hpcckpt.preemption.decision import Advice
from hpcckpt.preemption.halt import HaltWatch
from hpcckpt.preemption.messages import Messages
from hpcckpt.preemption.options import GuardOptions
from hpcckpt.preemption.signals import signal_flag
from hpcckpt.preemption.timing import JobTiming
from hpcckpt.preemption.walltime import TimeLeft


class StopRequests:
    """The requests of one rank to all ranks; only root checks the time and the file.

    Parameters
    ----------
    rank : int
        The rank.
    directory : pathlib.Path
        The run directory.
    options : GuardOptions
        As agreed.
    timing : JobTiming
        How long a stop takes, and when a save is due.
    messages : Messages
        Where root warns of a file that it cannot read.
    """

    def __init__(
        self, rank: int, directory: Path, options: GuardOptions, timing: JobTiming, messages: Messages
    ) -> None:
        self._rank = rank
        self._options = options
        self._timing = timing
        self._left = TimeLeft(None if options.job_end is None else options.job_end.at)
        self._messages = messages
        self._flag = signal_flag()
        self._asked = self._warned_of = ""
        places: list[str | os.PathLike[str]] = [directory, *options.halt_directories]
        self._halt = HaltWatch(places, options.halt_every_s) if options.halt_every_s and rank == 0 else None

    def catch(self) -> None:
        """Catch the signals from now on. Independent.

        Raises
        ------
        CodeError
            Outside of the main thread.
        """
        self._flag.catch(self._options.signals, self)

    def release(self) -> None:
        """Restore the former signal handlers. Independent."""
        self._flag.release(self)

    def ignore(self) -> None:
        """Ignore the signals until the process has ended. Independent."""
        if self._options.signals:
            self._flag.ignore()

    def ask(self, reason: str) -> None:
        """Record that the program itself requests a stop. Independent."""
        self._asked = reason

    def time_left(self) -> float | None:
        """Return the seconds until the job ends; None if that is unknown. Independent."""
        return self._left.seconds()

    @property
    def halt_path(self) -> Path | None:
        """The file that root checks for, where people write it; None if it does not."""
        return None if self._halt is None else self._halt.paths[-1]

    def request(self, step: int) -> BoundaryRequest | None:
        """Return the request of this rank, or None. Independent."""
        if self._flag.caught is not None and self._options.signals:
            return BoundaryRequest("stop", f"{self._flag.caught.name} on rank {self._rank}")
        if self._asked:
            return BoundaryRequest("stop", self._asked)
        return self._request_of_root(step) if self._rank == 0 else None

    def _request_of_root(self, step: int) -> BoundaryRequest | None:
        left_s = self.time_left()
        if left_s is not None and left_s <= self._timing.reserve_s:
            return BoundaryRequest("stop", f"the job ends in {duration_text(max(0.0, left_s))}")
        if reason := self._reason_of_halt(step):
            return BoundaryRequest("stop", reason)
        return BoundaryRequest("save", "it is time") if self._timing.is_time else None

    def _reason_of_halt(self, step: int) -> str:
        """Return why the file requests a stop, "" if it does not; warn once of one that cannot be read. Root only."""
        if self._halt is None:
            return ""
        reason = self._halt.reason(step)
        if self._halt.error not in {"", self._warned_of}:
            self._messages.warn(self._halt.error)
        self._warned_of = self._halt.error
        return reason

    def why_stopped(self, advice: Advice) -> str:
        """Return why the job stops, also if the file was written after the stop was agreed on. Root only."""
        return (self._halt is not None and self._halt.reason_now(advice.step)) or advice.reason

    def move_halt_aside(self, step: int) -> None:
        """Move the file aside, if the job that stops after `step` has done what it requests. Root only."""
        if self._halt is None:
            return
        for error in self._halt.move_aside(step):
            self._messages.warn(f"{error}: the next job will stop at once")
