"""What a guard measures: how long steps and saves take, and what saves cost."""

from __future__ import annotations

import time

from hpcckpt.core.results import SavedStep
from hpcckpt.interval import IntervalPlanner
from hpcckpt.preemption.options import GuardOptions
from hpcckpt.preemption.walltime import TimeNeeded


class JobTiming:
    """How long before its end a job must stop, and whether it is time to save.

    Parameters
    ----------
    options : GuardOptions
        As agreed.
    left_s : float or None
        Seconds until the job ends; None if that is unknown.
    """

    def __init__(self, options: GuardOptions, left_s: float | None) -> None:
        self._period_s = options.period_s
        self._needed = TimeNeeded(left_s or 0.0, options.reserve_s)
        self._planner = IntervalPlanner(options.mtbf_s, options.max_overhead)
        self._period_began = time.monotonic()
        self._step_began: float | None = None
        self._was_saving = False

    # -- what happens ------------------------------------------------------------------------------

    def step_begins(self, *, is_saving: bool) -> None:
        """Record that a batch boundary is left, and whether a save is in flight. Independent."""
        self._step_began, self._was_saving = time.monotonic(), is_saving

    def step_ended(self, *, is_saving: bool) -> None:
        """Record the time since the last boundary was left. Independent."""
        if self._step_began is not None:
            seconds = time.monotonic() - self._step_began
            self._needed.observe_step(seconds)
            self._planner.observe_step(seconds, is_saving=self._was_saving or is_saving)

    def save_begins(self) -> None:
        """Record that a save was advised. Independent."""
        self._period_began = time.monotonic()

    def committed(self, saved: SavedStep) -> None:
        """Record what a save cost, and when it was begun. Independent."""
        self._planner.observe_save(saved.stall_seconds, saved.seconds)
        self._period_began = max(self._period_began, time.monotonic() - saved.seconds)

    def drained(self, saved: SavedStep) -> None:
        """Record how long the drain of a step took: the last step must be drained too. Independent."""
        self._needed.observe_save(saved.seconds)

    # -- what follows ------------------------------------------------------------------------------

    @property
    def reserve_s(self) -> float:
        """How long before its end the job must be asked to stop."""
        return self._needed.seconds()

    @property
    def interval_s(self) -> float | None:
        """Seconds from one advised save to the next; None if none is advised."""
        return self._planner.period_s if self._period_s == "auto" else self._period_s

    @property
    def is_time(self) -> bool:
        """Whether a save is due."""
        interval_s = self.interval_s
        return interval_s is not None and time.monotonic() - self._period_began >= interval_s

    @property
    def last_cost_s(self) -> float:
        """Seconds that the last save cost the training; 0 before the first."""
        return self._planner.last_cost_s
