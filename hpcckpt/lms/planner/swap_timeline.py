"""What a choice costs: when swaps can begin and must end, and how long the step then takes. Pure.

A choice maps some gaps to how their item is absent: swapped, or recomputed. What follows from it:

1. Between the ends of a gap the item takes no memory. Recomputing prolongs the step after the gap, and needs its
   inputs, which may have to be swapped in earlier.
2. A swap-in begins as late as possible, but early enough that all pending reads finish in time, and not before there is
   memory for it.
3. A tensor being swapped out uses memory until it is written. A step that does not fit beside it waits for the writes,
   in their order.

So the budget holds at every step whatever the true times of ops and disk: a wrong estimate costs time, not memory. One
channel serves all transfers in the order in which they are asked for, or one each way.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Literal

import numpy as np
import numpy.typing as npt

from hpcckpt.lms.planner.swap_candidates import SwapProblem

Way = Literal["swap", "recompute"]
Choice = Mapping[int, Way]
Bytes = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TierBandwidth:
    """Bytes per second that a tier writes and reads; `is_shared` if one of them slows the other."""

    write: float
    read: float
    is_shared: bool = True
    start_ns: int = 200_000
    """Fixed time of a transfer."""

    def write_ns(self, nbytes: int) -> int:
        """Return how long it takes to write `nbytes`."""
        return self.start_ns + int(nbytes / self.write * 1e9)

    def read_ns(self, nbytes: int) -> int:
        """Return how long it takes to read `nbytes`."""
        return self.start_ns + int(nbytes / self.read * 1e9)


@dataclass(frozen=True)
class Absences:
    """Where items are absent under a choice, and the resulting memory and times of steps."""

    memory: Bytes
    times: list[int]
    ends: Mapping[int, int]
    """The step before which each chosen gap ends: earlier than the gap's own end if a recomputation needs the item."""


@dataclass(frozen=True)
class Timeline:
    """A step of training under a choice.

    Attributes
    ----------
    total_ns : int
        How long it takes.
    begins : mapping of int to int
        For each swapped gap the step after whose predecessor its swap-in begins.
    step_waits : tuple of (int, int)
        An item whose swap-out a step waits for, and that step.
    read_waits : tuple of (int, int)
        An item whose swap-out a swap-in waits for, and the gap of the swap-in.
    """

    total_ns: int
    absences: Absences
    begins: Mapping[int, int]
    step_waits: tuple[tuple[int, int], ...] = ()
    read_waits: tuple[tuple[int, int], ...] = ()


def absences(problem: SwapProblem, choice: Choice) -> Absences:
    """Take what is chosen out of memory."""
    memory = np.array(problem.memory, dtype=np.int64)
    times = list(problem.times)
    needed: dict[int, set[int]] = {}
    ends: dict[int, int] = {}
    for number in sorted(choice, reverse=True):
        gap = problem.gaps[number]
        end = min((step for step in needed.get(gap.item, ()) if step > gap.start), default=gap.end)
        end = min(end, gap.end)
        if end - gap.start < 2:
            continue
        ends[number] = end
        memory[gap.start + 1 : end] -= gap.nbytes
        if choice[number] == "recompute" and gap.recomputation is not None:
            times[end] += gap.recomputation.time_ns
            memory[end] += gap.recomputation.extra
            for source in gap.recomputation.sources:
                needed.setdefault(source, set()).add(end)
    for source, steps in needed.items():
        item = problem.items[source]
        memory[item.last + 1 : max(steps) + 1] += item.nbytes
    return Absences(memory, times, ends)


def timeline(
    problem: SwapProblem, choice: Choice, budget: int, bandwidth: TierBandwidth, margin: float = 1.25
) -> Timeline | None:
    """Return how a step goes under a choice, or `None` if it does not fit into the budget."""
    away = absences(problem, choice)
    if away.memory.size and int(away.memory.max()) > budget:
        return None
    swapped = sorted((number for number in away.ends if choice[number] == "swap"), key=lambda n: (away.ends[n], n))
    memory, begins = _reads(problem, away, swapped, budget, bandwidth, margin)
    return _Run(problem, away, begins, memory, budget, bandwidth).go()


def _reads(
    problem: SwapProblem, away: Absences, swapped: Sequence[int], budget: int, bandwidth: TierBandwidth, margin: float
) -> tuple[Bytes, dict[int, int]]:
    """Find where each swap-in begins; return memory with them, too."""
    starts = [0, *accumulate(away.times)]
    memory, begins, due = away.memory.copy(), {}, {}
    free_until = starts[-1]
    for number in reversed(swapped):
        free_until = min(free_until, starts[away.ends[number]]) - int(
            margin * bandwidth.read_ns(problem.gaps[number].nbytes)
        )
        due[number] = free_until
    for number in swapped:
        gap, end = problem.gaps[number], away.ends[number]
        earliest = max(gap.start + 2, bisect_right(starts, due[number]) - 1)
        full = np.flatnonzero(memory[earliest:end] + gap.nbytes > budget)
        begins[number] = min(end, earliest + int(full[-1]) + 1 if full.size else earliest)
        memory[begins[number] : end] += gap.nbytes
    return memory, begins


@dataclass
class _Run:
    """Goes through the steps once, with the clock."""

    problem: SwapProblem
    away: Absences
    begins: Mapping[int, int]
    memory: Bytes
    budget: int
    bandwidth: TierBandwidth
    write_free: int = 0
    read_free: int = 0
    written: dict[int, int] = field(default_factory=dict)
    """When each item is written."""
    on_way: list[tuple[int, int, int]] = field(default_factory=list)
    """Swap-outs that no op has waited for yet: when each is written, its bytes, the item."""
    n_on_way: int = 0
    step_waits: list[tuple[int, int]] = field(default_factory=list)
    read_waits: list[tuple[int, int]] = field(default_factory=list)

    def go(self) -> Timeline:
        outs, dues, reads, ends = self._events()
        memory, now = self.memory.tolist(), 0
        back: dict[int, int] = {}
        for step, time in enumerate(self.away.times):
            asked = reads.get(step, ())
            ahead = sum(self.problem.gaps[number].nbytes for number in asked if self.away.ends[number] > step)
            begin = self._make_room(step, memory[step] - ahead, now, asked)
            for number in asked:
                back[number] = self._read(number, memory[step], begin)
            begin = max([begin, *(back[number] for number in ends.get(step, ()))])
            now = begin + time
            for item in outs.get(step, ()):
                self._write(item, now)
            for item in dues.get(step, ()):
                nbytes = self.problem.items[item].nbytes
                insort(self.on_way, (self.written[item], nbytes, item))
                self.n_on_way += nbytes
        return Timeline(now, self.away, self.begins, tuple(self.step_waits), tuple(self.read_waits))

    def _events(self) -> tuple[dict[int, list[int]], ...]:
        """Return, by step, the items whose writing begins and whose absence does, the swap-ins that begin and end."""
        outs: dict[int, list[int]] = {}
        dues: dict[int, list[int]] = {}
        reads: dict[int, list[int]] = {}
        ends: dict[int, list[int]] = {}
        gaps, swapped = self.problem.gaps, {self.problem.gaps[number].item for number in self.begins}
        for number in sorted(self.away.ends):
            item = gaps[number].item
            if item in swapped:
                swapped.remove(item)
                outs.setdefault(self.problem.items[item].uses[0], []).append(item)
                dues.setdefault(gaps[number].start, []).append(item)
        for number, begin in self.begins.items():
            reads.setdefault(begin, []).append(number)
            ends.setdefault(self.away.ends[number], []).append(number)
        return outs, dues, reads, ends

    def _make_room(self, step: int, taken: int, now: int, asked: Sequence[int]) -> int:
        """Return when a step has room beside what is on its way out; swap-ins that begin with it wait as it does."""
        for number in asked:
            self._forget(number)
        while self.on_way and taken + self.n_on_way > self.budget:
            done, nbytes, item = self.on_way.pop(0)
            self.n_on_way -= nbytes
            self.step_waits.append((item, step))
            self.read_waits += ((item, each) for each in asked)
            now = max(now, done)
        return now

    def _forget(self, number: int) -> None:
        """Count no longer as on its way out what is written before it is read."""
        for entry in self.on_way:
            if entry[2] == self.problem.gaps[number].item:
                self.on_way.remove(entry)
                self.n_on_way -= entry[1]
                return

    def _read(self, number: int, taken: int, now: int) -> int:
        """Return when a swap-in is done that is asked for now."""
        left = self.n_on_way
        for done, nbytes, other in self.on_way:
            if taken + left <= self.budget:
                break
            left -= nbytes
            self.read_waits.append((other, number))
            now = max(now, done)
        gap = self.problem.gaps[number]
        begin = max(now, self.read_free, self.written[gap.item])
        self.read_free = begin + self.bandwidth.read_ns(gap.nbytes)
        if self.bandwidth.is_shared:
            self.write_free = max(self.write_free, self.read_free)
        return self.read_free

    def _write(self, item: int, now: int) -> None:
        begin = max(now, self.write_free)
        self.write_free = begin + self.bandwidth.write_ns(self.problem.items[item].nbytes)
        if self.bandwidth.is_shared:
            self.read_free = max(self.read_free, self.write_free)
        self.written[item] = self.write_free
