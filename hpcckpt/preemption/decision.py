"""What a guard advises at a boundary, and the exit of a job that was requested to stop."""

from __future__ import annotations

from typing import NamedTuple

EXIT_CODE = 75
"""EX_TEMPFAIL: the job has saved and is not done; put it into the queue again."""


class Preempted(SystemExit):
    """The job has saved and ends: the program exits with code 75, after MPI is finalized.

    Attributes
    ----------
    step : int
        The step that was saved.
    reason : str
        Why the job ends.
    """

    def __init__(self, step: int, reason: str) -> None:
        super().__init__(EXIT_CODE)
        self.step = step
        self.reason = reason

    def __str__(self) -> str:
        return f"stopped after step {self.step}: {self.reason}"


class Advice(NamedTuple):
    """What to do at a batch boundary, the same on all ranks.

    Attributes
    ----------
    save, stop : bool
        Whether to save now; whether to stop, after a save.
    step : int
        The step that was agreed on.
    reason : str
        Why.
    is_end : bool
        Whether all ranks have finished (only from `Guard.finished`).
    """

    save: bool = False
    stop: bool = False
    step: int = -1
    reason: str = ""
    is_end: bool = False


NOTHING = Advice()
