"""From values to places on a chart, and round values to label. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

_TIMES_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800)


@dataclass(frozen=True, slots=True)
class Scale:
    """A straight line from values to places.

    Attributes
    ----------
    low, high : float
        The values at both ends.
    begin, end : float
        Their places.
    """

    low: float
    high: float
    begin: float
    end: float

    def __call__(self, value: float) -> float:
        """Return the place of a value."""
        part = 0.5 if self.high == self.low else (value - self.low) / (self.high - self.low)
        return self.begin + part * (self.end - self.begin)


def ticks(low: float, high: float, n_wanted: int = 4) -> list[float]:
    """Return round values between two, about so many."""
    if not high > low:
        return [low]
    rough = (high - low) / max(1, n_wanted)
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * factor for factor in (1, 2, 2.5, 5, 10) if unit * factor >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [number * step for number in range(first, math.floor(high / step + 1e-9) + 1)]


def binary_ticks(high: float, n_wanted: int = 4) -> list[float]:
    """Return values from 0 on that are round in KiB, MiB, GiB."""
    if high <= 0:
        return [0.0]
    unit = 1024.0 ** max(0, math.floor(math.log(high, 1024)))
    return [tick * unit for tick in ticks(0.0, high / unit, n_wanted)]


def time_step(seconds: float, n_wanted: int = 6) -> float:
    """Return a round number of seconds that divides a time into about so many parts."""
    rough = seconds / n_wanted
    return next((float(step) for step in _TIMES_S if step >= rough), math.ceil(rough / 604800) * 604800.0)


def spread(values: Sequence[float], margin: float = 0.06) -> tuple[float, float]:
    """Return the least and the greatest value with some room around them."""
    low, high = min(values), max(values)
    room = (high - low) * margin or abs(high) * 0.1 or 1.0
    return low - room, high + room


def number_words(value: float) -> str:
    """Return a value of a metric for an axis: four digits."""
    return f"{value:.4g}"
