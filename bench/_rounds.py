"""Interleaved rounds: every variant once in each, in an order of chance, each between two looks at the machine."""

from __future__ import annotations

import os
import random
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from _common import WORLD, slowest_copy

SPARE_SHARE = 0.5
WARM_UP = 2
"""Files are recycled from the third save on, and TensorFlow's asynchronous ones take until then to be fast."""
Figures = dict[str, float]
"""What one measurement gives: seconds by what took them, such as ``save`` and ``load``."""


@dataclass
class Rounds:
    """What was measured.

    Attributes
    ----------
    figures : dict of str to list
        For each variant its figures in each round; ``None`` where no try was steady.
    memcpy : list of float
        Bytes per second of the slowest rank's memcpy, after each measurement.
    discarded : int
        Measurements thrown away because memcpy before and after parted too far.
    spare : int
        How many more may be made again.
    load : list of float
        Load averages, one for each round.
    """

    figures: dict[str, list[Figures | None]]
    memcpy: list[float] = field(default_factory=list)
    discarded: int = 0
    spare: int = 0
    load: list[float] = field(default_factory=list)

    def of(self, name: str, what: str) -> list[float]:
        """Return the steady seconds of a variant."""
        return [figures[what] for figures in self.figures[name] if figures is not None and what in figures]

    def ratios(self, over: str, under: str, what: str) -> list[float]:
        """Return one variant's seconds over another's, round by round, where both were steady."""
        pairs = zip(self.figures[over], self.figures[under], strict=True)
        return [a[what] / b[what] for a, b in pairs if a and b and what in a and what in b]


def joined(found: Sequence[Rounds]) -> Rounds:
    """Return rounds of several groups of variants behind one another; a variant has none in a group that lacks it."""
    figures: dict[str, list[Figures | None]] = {name: [] for each in found for name in each.figures}
    for each in found:
        n_rounds = len(each.load) - WARM_UP
        for name, rounds in figures.items():
            rounds.extend(each.figures.get(name, [None] * n_rounds))
    memcpy = [rate for each in found for rate in each.memcpy]
    load = [average for each in found for average in each.load]
    return Rounds(figures, memcpy, sum(each.discarded for each in found), sum(each.spare for each in found), load)


def spread(values: list[float]) -> dict[str, float] | None:
    """Return median, least and most."""
    if not values:
        return None
    return {"median": statistics.median(values), "least": min(values), "most": max(values)}


def interleave(
    variants: Mapping[str, Callable[[], Figures]],
    copy_rate: Callable[[], float],
    *,
    repeat: int,
    drift: float,
) -> Rounds:
    """Measure all variants `repeat` times, after `WARM_UP` times that do not count. Collective.

    Parameters
    ----------
    variants : dict of str to callable
        Each does one measurement; its figures are the same on all ranks.
    copy_rate : callable
        Measures a memcpy; its rate before and after a measurement must not part by more than `drift`, or the
        measurement is thrown away and made again, as long as that makes no more than half as many again in all.
    """
    found = Rounds({name: [] for name in variants}, spare=int(SPARE_SHARE * repeat * len(variants)))
    for number in range(-WARM_UP, repeat):
        if WORLD.rank == 0:
            done = f"round {number + WARM_UP + 1} of {WARM_UP + repeat}"
            print(f"{done}: {', '.join(variants)}", file=sys.stderr, flush=True)
        for name in random.Random(number).sample(sorted(variants), len(variants)):
            if number < 0:
                variants[name]()
            else:
                found.figures[name].append(_steady(variants[name], copy_rate, drift, found))
        found.load.append(os.getloadavg()[0])
    return found


def _steady(
    measure: Callable[[], Figures], copy_rate: Callable[[], float], drift: float, found: Rounds
) -> Figures | None:
    before = slowest_copy(copy_rate)
    while True:
        figures = measure()
        after = slowest_copy(copy_rate)
        found.memcpy.append(after)
        if abs(after / before - 1.0) <= drift:
            return figures
        found.discarded += 1
        if found.spare == 0:
            return None
        found.spare -= 1
        before = after
