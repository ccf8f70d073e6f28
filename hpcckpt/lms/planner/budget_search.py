"""The search: for one budget after the other, the least first, a choice that exposes the least time. Pure.

At each budget several choices are built: all gaps are used, then items stay that fit, with more or less room
left over for transfers; the best of them, or the best choice of the budget before, is improved one gap at a time. The
choice of the budget before is among them, timeline and all, so the time never rises with the budget.

Where ideas come from: the exact timeline of memory instead of distances, and recomputation weighed against swapping by
exposed time, from Capuchin (Peng et al., ASPLOS 2020); that schedule and swaps belong together from SwapAdvisor (Huang
et al., ASPLOS 2020); cheap layers that are not worth a transfer from SuperNeurons (Wang et al., PPoPP 2018); windows of
swaps bounded by memory from out-of-core training (arXiv 2010.14109). POET (ICML 2022) and Checkmate (MLSys 2020) solve
what is searched here as integer programs, in minutes to hours.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from hpcckpt.lms.planner.swap_candidates import Gap, SwapProblem
from hpcckpt.lms.planner.swap_timeline import Choice, TierBandwidth, Timeline, Way, absences, timeline

RATIO = 1.03
N_TRIES = 20
_ROOMS = (0.0, 0.12, 0.3)
_THRIFTS = (0.0, 0.35, 1.0)


@dataclass(frozen=True, slots=True)
class Point:
    """The best choice that was found for a budget."""

    budget: int
    choice: Choice
    timeline: Timeline

    @property
    def rank(self) -> tuple[int, int]:
        """By what choices are compared: time, then how many there are."""
        return self.timeline.total_ns, len(self.choice)


@dataclass
class Search:
    """Finds choices for growing budgets.

    Parameters
    ----------
    problem : SwapProblem
        Steps, items, gaps.
    bandwidth : TierBandwidth
        Of the tier.
    """

    problem: SwapProblem
    bandwidth: TierBandwidth
    n_tries: int = N_TRIES
    _turn: int = field(default=0, init=False)

    @cached_property
    def floor(self) -> int:
        """The least budget that can be met: with everything absent that can be."""
        away = absences(self.problem, dict.fromkeys(range(len(self.problem.gaps)), "swap"))
        return int(away.memory.max()) if away.memory.size else self.problem.peak

    @property
    def least_ns(self) -> int:
        """What a step takes at least."""
        return sum(self.problem.times)

    def points(self, limit: int | None = None) -> Iterator[Point]:
        """Go through budgets, the least that can be met first, as far as `limit` or to where nothing need be done."""
        best: Point | None = None
        for budget in self._budgets(limit):
            if best is None or best.timeline.total_ns > self.least_ns:
                best = self._at(budget, best)
                yield best
        if best is not None and best.timeline.total_ns == self.least_ns:
            yield self._at(budget, best)

    def _budgets(self, limit: int | None) -> Iterator[int]:
        """Return the rungs of a ladder that starts at the least budget and does not depend on the limit."""
        top = self.problem.peak if limit is None else min(limit, self.problem.peak)
        budget = self.floor
        while budget <= top:
            yield budget
            budget = max(budget + 1, min(int(budget * RATIO), self.problem.peak))

    def _at(self, budget: int, before: Point | None) -> Point:
        found = (point for choice in self._built(budget, before) if (point := self._point(budget, choice)))
        best = min(found, key=lambda point: point.rank)
        return self._improved(best) if best.timeline.total_ns > self.least_ns else best

    def _point(self, budget: int, choice: Choice) -> Point | None:
        run = timeline(self.problem, choice, budget, self.bandwidth)
        return Point(budget, choice, run) if run else None

    def _built(self, budget: int, before: Point | None) -> Iterator[Choice]:
        if budget >= self.problem.peak:
            yield {}
        if before is not None:
            yield before.choice
        ways = [self._ways(thrift) for thrift in _THRIFTS]
        if before is not None:
            ways = [{**ways[0], **before.choice}, ways[self._turn % len(ways)]]
        for way in ways:
            yield way
            for room in _ROOMS:
                yield self._kept(way, int(budget * (1 - room)))

    def _ways(self, thrift: float) -> dict[int, Way]:
        """Use all gaps; compute again what takes less than `thrift` of the time of its transfers."""
        ways: dict[int, Way] = {}
        for number, gap in enumerate(self.problem.gaps):
            moving = self.bandwidth.write_ns(gap.nbytes) + self.bandwidth.read_ns(gap.nbytes)
            is_cheap = gap.recomputation is not None and gap.recomputation.time_ns < thrift * moving
            ways[number] = "recompute" if is_cheap else "swap"
        return ways

    @cached_property
    def _by_length(self) -> list[int]:
        """Return the gaps, the shortest first: to leave its item costs least room."""
        gaps = self.problem.gaps
        return sorted(range(len(gaps)), key=lambda number: (gaps[number].end - gaps[number].start, number))

    def _kept(self, ways: dict[int, Way], budget: int) -> Choice:
        """Take gaps away from a choice as long as memory stays below a budget."""
        away = absences(self.problem, ways)
        memory, kept = away.memory, dict(ways)
        for number in self._by_length:
            gap, end = self.problem.gaps[number], away.ends.get(number)
            if end is None:
                del kept[number]
            elif int(memory[gap.start + 1 : end].max()) + gap.nbytes <= budget:
                memory[gap.start + 1 : end] += gap.nbytes
                del kept[number]
        return kept

    def _improved(self, best: Point) -> Point:
        """Try the other choices for one gap after the other; each search continues where the last one ended."""
        for _ in range(min(self.n_tries, 3 * len(self.problem.gaps))):
            number = self._turn % len(self.problem.gaps)
            self._turn += 1
            for choice in _neighbours(best.choice, number, self.problem.gaps[number]):
                point = self._point(best.budget, choice)
                if point is not None and point.rank < best.rank:
                    best = point
        return best


def _neighbours(choice: Choice, number: int, gap: Gap) -> Iterator[Choice]:
    now = choice.get(number)
    if now is not None:
        yield {other: way for other, way in choice.items() if other != number}
    if now != "swap":
        yield {**choice, number: "swap"}
    if now != "recompute" and gap.recomputation is not None:
        yield {**choice, number: "recompute"}
