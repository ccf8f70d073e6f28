"""What a guard answers: what to do at a boundary, and how a job ends that was asked to stop."""

from __future__ import annotations

from typing import NamedTuple

EXIT_CODE = 75
"""EX_TEMPFAIL: the job has saved and wants to go on; put it into the queue again."""


class Preempted(SystemExit):
    """The job has saved, and ends: the program exits with code 75, after Python has ended and MPI is finalized.

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
        return f"stopped behind step {self.step}: {self.reason}"


class Advice(NamedTuple):
    """What to do at a batch boundary, the same on all ranks.

    Attributes
    ----------
    save, stop : bool
        Whether to save now; whether to stop, which means to save first.
    step : int
        The step that was agreed on.
    reason : str
        Why.
    is_end : bool
        All ranks have finished (`Guard.finished` only).
    """

    save: bool = False
    stop: bool = False
    step: int = -1
    reason: str = ""
    is_end: bool = False


NOTHING = Advice()
