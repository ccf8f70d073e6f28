"""The plans whose steps were measured: which one is kept, and what to plan for next. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from hpcckpt.lms.planning import Made
from hpcckpt.lms.verification import Measured


@dataclass(frozen=True, slots=True)
class Trial:
    """A plan, what its step took on this rank, and the peak on the rank where that was most."""

    made: Made
    measured: Measured
    peak: int


@dataclass
class Trials:
    """The trials of one graph or function, in order."""

    all: list[Trial] = field(default_factory=list)

    @property
    def best(self) -> Trial:
        """The trial with the lowest peak, the first of those."""
        return min(self.all, key=lambda trial: trial.peak)

    def holds(self, made: Made) -> bool:
        """Return whether this very plan was tried."""
        return any(trial.made.plan.digest == made.plan.digest for trial in self.all)
