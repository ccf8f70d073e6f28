"""The messages of a guard on standard error."""

from __future__ import annotations

from pathlib import Path

from hpcckpt.core.durations import duration_text
from hpcckpt.core.std_streams import write_wrapped
from hpcckpt.preemption.options import GuardOptions
from hpcckpt.preemption.signals import signal_names
from hpcckpt.preemption.timing import JobTiming


class Messages:
    """Writes lines to standard error.

    Parameters
    ----------
    is_logging : bool
        Whether this rank writes; if not, the methods do nothing.
    """

    def __init__(self, *, is_logging: bool) -> None:
        self._is_logging = is_logging

    def log(self, text: str) -> None:
        """Write a line. Independent."""
        if self._is_logging:
            write_wrapped(f"hpcckpt: {text}")

    def warn(self, text: str) -> None:
        """Write a warning. Independent."""
        self.log(f"warning: {text}")


def describe_watch(options: GuardOptions, timing: JobTiming, left_s: float | None, halt: Path | None) -> str:
    """Return in one line what a guard watches. Independent."""
    names = ",".join(signal_names(options.signals)) or "none"
    end = "unknown" if options.job_end is None else str(options.job_end).replace(" ", "")
    words = [f"signals={names}", f"end={end}"]
    if left_s is not None:
        words += [f"left={duration_text(left_s)}", f"reserve={timing.reserve_s:.0f}s"]
    words.append(f"halt={halt or 'none'}")
    if timing.interval_s is not None:
        every = "auto" if options.period_s == "auto" else duration_text(timing.interval_s)
        words.append(f"every={every}")
    return f"watching {' '.join(words)}"
