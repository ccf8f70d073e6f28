"""What asks a job to stop: a signal, the end of its time, the file ``HALT``, or the program itself."""

from __future__ import annotations

from pathlib import Path

from hpcckpt.preemption.advice import Advice
from hpcckpt.preemption.agreement import Wish
from hpcckpt.preemption.clock import duration_text
from hpcckpt.preemption.halt import HaltWatch
from hpcckpt.preemption.learning import Learned
from hpcckpt.preemption.options import GuardOptions
from hpcckpt.preemption.signals import the_flag
from hpcckpt.preemption.voice import Voice
from hpcckpt.preemption.walltime import seconds_left


class Requests:
    """What one rank wants all to do; root alone looks at the clock and for the file.

    Parameters
    ----------
    rank : int
        Which one.
    directory : pathlib.Path
        The run directory.
    options : GuardOptions
        As agreed.
    learned : Learned
        How long a stop takes, and when a save is due.
    voice : Voice
        Where root complains of a file that it cannot read.
    """

    def __init__(self, rank: int, directory: Path, options: GuardOptions, learned: Learned, voice: Voice) -> None:
        self._rank = rank
        self._options = options
        self._learned = learned
        self._voice = voice
        self._flag = the_flag()
        self._asked = ""
        self._halt = HaltWatch(directory, options.halt_every_s) if options.halt_every_s else None

    def catch(self) -> None:
        """Catch the signals from now on. Independent.

        Raises
        ------
        CodeError
            Outside of the main thread.
        """
        self._flag.catch(self._options.signals, self)

    def give_back(self) -> None:
        """Give the signals back to whoever had them before. Independent."""
        self._flag.release(self)

    def ignore(self) -> None:
        """Ignore the signals until the process has ended, and hurry nothing. Independent."""
        if self._options.signals:
            self._flag.ignore()

    def ask(self, reason: str) -> None:
        """Take in that the program itself wants to stop. Independent."""
        self._asked = reason

    def time_left(self) -> float | None:
        """Return the seconds until the job ends; ``None`` if nobody knows. Independent."""
        return seconds_left(self._options.job_end)

    @property
    def halt_path(self) -> Path | None:
        """The file that is looked for, if one is."""
        return None if self._halt is None else self._halt.path

    def wish(self, step: int) -> Wish | None:
        """Return what this rank wants now. Independent."""
        if self._flag.caught is not None and self._options.signals:
            return Wish("stop", f"{self._flag.caught.name} on rank {self._rank}")
        if self._asked:
            return Wish("stop", self._asked)
        return self._wish_of_root(step) if self._rank == 0 else None

    def _wish_of_root(self, step: int) -> Wish | None:
        left_s = self.time_left()
        if left_s is not None and left_s <= self._learned.reserve_s:
            return Wish("stop", f"the job ends in {duration_text(max(0.0, left_s))}")
        if reason := self._reason_of_halt(step):
            return Wish("stop", reason)
        return Wish("save", "it is time") if self._learned.is_time else None

    def _reason_of_halt(self, step: int) -> str:
        """Return why the file asks to stop, "" if it does not; complain once of one that cannot be read. Root only."""
        if self._halt is None:
            return ""
        complaint = self._halt.complaint
        reason = self._halt.reason(step)
        if self._halt.complaint not in {"", complaint}:
            self._voice.warn(self._halt.complaint)
        return reason

    def why_stopped(self, advice: Advice) -> str:
        """Return why the job stops: by a file that came last too, if it is due. Root only."""
        return (self._halt is not None and self._halt.reason_now(advice.step)) or advice.reason

    def take_halt_away(self, step: int) -> None:
        """Put the file aside, if the job that stops behind `step` has done what it asks. Root only."""
        if self._halt is None:
            return
        try:
            self._halt.take_away(step)
        except OSError as error:
            self._voice.warn(f"{self._halt.path} could not be removed ({error}): the next job will stop at once")
