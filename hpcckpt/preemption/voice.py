"""What a guard says on standard error."""

from __future__ import annotations

from pathlib import Path

from hpcckpt.preemption.clock import duration_text
from hpcckpt.preemption.learning import Learned
from hpcckpt.preemption.options import GuardOptions
from hpcckpt.preemption.signals import signal_names
from hpcckpt.streams import write_wrapped


class Voice:
    """Writes lines on standard error, where it is allowed to.

    Parameters
    ----------
    is_talking : bool
        Whether this rank writes at all.
    """

    def __init__(self, *, is_talking: bool) -> None:
        self._is_talking = is_talking

    def say(self, text: str) -> None:
        """Write a line. Independent."""
        if self._is_talking:
            write_wrapped(f"hpcckpt: {text}")

    def warn(self, text: str) -> None:
        """Write a warning. Independent."""
        self.say(f"warning: {text}")


def what_is_watched(options: GuardOptions, learned: Learned, left_s: float | None, halt: Path | None) -> str:
    """Return in one line what a guard looks out for. Independent."""
    names = ",".join(signal_names(options.signals)) or "none"
    end = "unknown" if options.job_end is None else str(options.job_end).replace(" ", "")
    words = [f"signals={names}", f"end={end}"]
    if left_s is not None:
        words += [f"left={duration_text(left_s)}", f"reserve={learned.reserve_s:.0f}s"]
    words.append(f"halt={halt or 'none'}")
    if learned.interval_s is not None:
        every = "auto" if options.period_s == "auto" else duration_text(learned.interval_s)
        words.append(f"every={every}")
    return f"watching {' '.join(words)}"
