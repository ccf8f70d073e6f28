"""How long to train between two saves, so that least is lost: from what a save costs, and how often jobs die.

J. W. Young, *A first order approximation to the optimum checkpoint interval*, Communications of the ACM 17(9), 1974.
J. T. Daly, *A higher order estimate of the optimum checkpoint interval for restart dumps*, Future Generation Computer
Systems 22(3), 2006.  N. H. Vaidya, *Impact of checkpoint latency on overhead ratio of a checkpointing scheme*, IEEE
Transactions on Computers 46(8), 1997: a save in the background counts by what it takes from the training, however long
it lasts.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from dataclasses import dataclass, field

REMEMBERED_SAVES = 8
REMEMBERED_STEPS = 101


def young(cost_s: float, mtbf_s: float) -> float:
    """Return Young's interval: seconds of training between two saves that cost `cost_s` each. Independent."""
    return math.sqrt(2.0 * cost_s * mtbf_s)


def daly(cost_s: float, mtbf_s: float) -> float:
    """Return Daly's interval: seconds of training between two saves. Independent.

    It also holds for saves that are not short against `mtbf_s`.
    """
    if cost_s >= 2.0 * mtbf_s:
        return mtbf_s
    ratio = cost_s / (2.0 * mtbf_s)
    return young(cost_s, mtbf_s) * (1.0 + math.sqrt(ratio) / 3.0 + ratio / 9.0) - cost_s


def lost_part(interval_s: float, cost_s: float, mtbf_s: float, restart_s: float = 0.0) -> float:
    """Return the part of the time that is lost. Independent.

    It is lost to saves, to restarts, and to steps that are trained again. This is Daly's expected value: failures are
    equally likely at any moment, also during a save or a restart. One second of training takes
    ``mtbf * exp(restart/mtbf) * (exp((interval+cost)/mtbf) - 1) / interval`` seconds.
    """
    exponent = (interval_s + cost_s) / mtbf_s
    if exponent + restart_s / mtbf_s > 700.0:
        return 1.0
    return 1.0 - interval_s / (mtbf_s * math.exp(restart_s / mtbf_s) * math.expm1(exponent))


def job_mtbf(node_mtbf_s: float, n_nodes: int) -> float:
    """Return the mean time between failures of a job. Independent.

    The job fails when any one of its nodes fails.
    """
    return node_mtbf_s / n_nodes


@dataclass(slots=True)
class IntervalPlanner:
    """Measures what saves cost, and computes how long to train between them.

    Parameters
    ----------
    mtbf_s : float
        Mean time between failures of the whole job.
    max_overhead : float
        The largest part of the time that saves may take; it takes precedence over the formula.
    min_interval_s : float
        The shortest interval, which is also used before the first save.

    Notes
    -----
    The cost of a save is the time for which it blocked the training, or the time by which the steps were longer while
    it ran in the background, whichever is larger. It is at most the duration of the save. The first save plans, and
    touches memory for the first time; its cost is used only until there is a second save.
    """

    mtbf_s: float
    max_overhead: float = 0.03
    min_interval_s: float = 60.0
    _costs: deque[float] = field(init=False, default_factory=lambda: deque(maxlen=REMEMBERED_SAVES))
    _longest: deque[float] = field(init=False, default_factory=lambda: deque(maxlen=REMEMBERED_SAVES))
    _quiet: deque[float] = field(init=False, default_factory=lambda: deque(maxlen=REMEMBERED_STEPS))
    _excess_s: float = field(init=False, default=0.0)
    _n_saves: int = field(init=False, default=0)

    def observe_step(self, seconds: float, *, is_saving: bool) -> None:
        """Record the duration of a step, and whether a save ran during it. Independent."""
        if not is_saving:
            self._quiet.append(seconds)
        elif self._quiet:
            self._excess_s += max(0.0, seconds - statistics.median(self._quiet))

    def observe_save(self, stall_s: float, seconds: float) -> None:
        """Record how long a save blocked the training, and its duration. Independent."""
        if self._n_saves == 1:
            self._costs.clear()
        self._costs.append(min(max(stall_s, self._excess_s), seconds))
        self._longest.append(seconds)
        self._excess_s = 0.0
        self._n_saves += 1

    @property
    def last_cost_s(self) -> float:
        """Seconds that the last save cost the training; 0 before the first save."""
        return self._costs[-1] if self._costs else 0.0

    @property
    def cost_s(self) -> float | None:
        """Mean cost of the last saves, in seconds; ``None`` before the first save."""
        return statistics.fmean(self._costs) if self._costs else None

    @property
    def interval_s(self) -> float:
        """Seconds of training between two saves."""
        cost = self.cost_s
        if cost is None:
            return self.min_interval_s
        within_cap = cost * (1.0 - self.max_overhead) / self.max_overhead
        return max(daly(cost, self.mtbf_s), within_cap, 2.0 * max(self._longest), self.min_interval_s)

    @property
    def period_s(self) -> float:
        """Seconds from the beginning of one save to the beginning of the next."""
        return self.interval_s + (self.cost_s or 0.0)
