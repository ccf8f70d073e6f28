"""How long to train between two saves of a run: Young and Daly, and what other intervals would lose. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hpcckpt.errors import OptionError, StepNotFoundError
from hpcckpt.interval import daly, lost_part, young
from hpcckpt.tools.report.statistics import RunStatistics

FACTORS = (1 / 8, 1 / 4, 1 / 2, 1.0, 2.0, 4.0, 8.0)
DEFAULT_MTBF_S = 86400.0
MIN_DEATHS = 3
"""Number of jobs that must have died before their failure rate is estimated."""


@dataclass(frozen=True, slots=True)
class IntervalChoice:
    """An interval, and what it loses.

    Attributes
    ----------
    interval_s : float
        Seconds of training between two saves.
    steps : int or None
        The same in steps.
    lost, saving, again : float
        The part of the time that is lost in all, to saves, and to training again what a failure took.
    what : str
        ``advised``, ``now``, ``young``, or "".
    """

    interval_s: float
    steps: int | None
    lost: float
    saving: float
    again: float
    what: str = ""


@dataclass(frozen=True, slots=True)
class IntervalAdvice:
    """What to do, and why.

    Attributes
    ----------
    cost_s, mtbf_s, restart_s : float
        What a save costs, the mean time between failures, and how long a restart takes.
    mtbf_source : str
        ``given``, ``journal``, or ``assumed``.
    interval_s, young_s : float
        Daly's interval, and Young's.
    now_s : float or None
        From one save to the next as it is.
    choices : tuple of IntervalChoice
        By rising interval.
    warnings : tuple of str
        Why there is no advice.
    """

    cost_s: float
    mtbf_s: float
    mtbf_source: str
    restart_s: float
    interval_s: float
    young_s: float
    now_s: float | None
    choices: tuple[IntervalChoice, ...]
    warnings: tuple[str, ...] = ()

    @property
    def advised(self) -> IntervalChoice:
        """The interval that is advised."""
        return next(choice for choice in self.choices if choice.what == "advised")

    @property
    def now(self) -> IntervalChoice | None:
        """The present interval; None if it is unknown."""
        return next((choice for choice in self.choices if choice.what == "now"), None)


def advise(
    figures: RunStatistics, mtbf_s: float | None = None, restart_s: float | None = None, cost_s: float | None = None
) -> IntervalAdvice:
    """Advise an interval. Pure.

    Parameters
    ----------
    figures : RunStatistics
        Of the run.
    mtbf_s, restart_s, cost_s : float, optional
        Figures to use instead of those of the run.

    Raises
    ------
    StepNotFoundError
        If neither the run nor the caller says what a save costs.
    OptionError
        If a value makes no sense.
    """
    cost = figures.cost_s if cost_s is None else cost_s
    if cost is None:
        raise StepNotFoundError("no journal tells what a save costs here: let the run save twice, or pass --cost")
    if cost <= 0:
        raise OptionError(f"a save that costs {cost} s needs no interval: give a positive cost")
    mtbf, source = _mtbf(figures, mtbf_s)
    restart = figures.restart_s or 0.0 if restart_s is None else restart_s
    best, simple = daly(cost, mtbf), young(cost, mtbf)
    now = None if figures.interval_s is None else max(figures.interval_s - cost, 1e-3)
    wanted = [(best, "advised")]
    wanted += [(simple, "young")] if abs(simple / best - 1) > 0.01 else []
    wanted += [(now, "now")] if now is not None else []
    wanted += [(best * factor, "") for factor in FACTORS if best * factor not in dict(wanted)]
    choices = [_choice(interval, what, figures, cost, mtbf, restart) for interval, what in sorted(wanted)]
    warnings = tuple(_warnings(figures, best, cost, mtbf, source))
    return IntervalAdvice(cost, mtbf, source, restart, best, simple, now, tuple(choices), warnings)


def _mtbf(figures: RunStatistics, given: float | None) -> tuple[float, str]:
    if given is not None:
        return given, "given"
    if figures.mtbf_s is not None and figures.n_deaths >= MIN_DEATHS:
        return figures.mtbf_s, "journal"
    return DEFAULT_MTBF_S, "assumed"


def _choice(
    interval: float, what: str, figures: RunStatistics, cost: float, mtbf: float, restart: float
) -> IntervalChoice:
    lost = lost_part(interval, cost, mtbf, restart)
    useful = 1.0 - lost
    saving = min(lost, useful * cost / interval)
    speed = figures.steps_per_second
    return IntervalChoice(
        interval, max(1, round(interval * speed)) if speed else None, lost, saving, lost - saving, what
    )


def _warnings(figures: RunStatistics, best: float, cost: float, mtbf: float, source: str) -> list[str]:
    found = []
    if figures.save_s is not None and figures.save_s > best:
        found.append(
            f"a save takes {figures.save_s:.1f} s in the background, longer than the interval: one cannot begin "
            "before the last has ended"
        )
    if cost > mtbf / 2:
        found.append("a save costs more than half the time between failures: make saves cheaper first")
    if source == "assumed":
        found.append(f"the time between failures is not known: {DEFAULT_MTBF_S / 3600:.0f} h is assumed; pass --mtbf")
    if figures.n_saves < 3:
        found.append("fewer than three saves tell what one costs: ask again later")
    return found


def curve(advice: IntervalAdvice, n_points: int = 200) -> list[tuple[float, float]]:
    """Return intervals, and the part of the time that each loses, over all that is of interest. Pure."""
    low = min(choice.interval_s for choice in advice.choices) / 2
    high = max(choice.interval_s for choice in advice.choices) * 2
    steps = [low * math.exp(math.log(high / low) * i / (n_points - 1)) for i in range(n_points)]
    return [(each, lost_part(each, advice.cost_s, advice.mtbf_s, advice.restart_s)) for each in steps]
