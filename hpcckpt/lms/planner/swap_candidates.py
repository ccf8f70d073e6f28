"""The input of the search: the steps of an executed order, and which buffers could be absent between two. Pure.

Only ops that touch a buffer worth swapping are steps; the others run when they can and need almost no memory.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from hpcckpt.lms.graph.filters import is_collective
from hpcckpt.lms.graph.graph_context import GraphContext
from hpcckpt.lms.graph.liveness import Buffer, Liveness, liveness
from hpcckpt.lms.graph.op_times import Rates, op_time_ns
from hpcckpt.lms.planner.op_schedule import Waits
from hpcckpt.lms.planner.recompute import Item, Recomputation, RecomputeFinder


@dataclass(frozen=True, slots=True)
class Gap:
    """A time in which an item is not needed: after step `start`, before step `end`."""

    item: int
    start: int
    end: int
    nbytes: int
    recomputation: Recomputation | None = None


@dataclass(frozen=True)
class SwapProblem:
    """The planner's search problem.

    Attributes
    ----------
    steps : tuple of str
        The ops that count, in their order.
    times : tuple of int
        How long each takes, in nanoseconds.
    memory : tuple of int
        Bytes in memory while each runs, with everything kept.
    items : tuple of Item
        Buffers worth swapping, in the order of their producers.
    gaps : tuple of Gap
        When they could be absent.
    """

    context: GraphContext
    live: Liveness
    steps: tuple[str, ...]
    times: tuple[int, ...]
    memory: tuple[int, ...]
    items: tuple[Item, ...]
    gaps: tuple[Gap, ...]

    @property
    def peak(self) -> int:
        """The most memory with everything kept."""
        return max(self.memory, default=self.live.peak)


def problem(
    context: GraphContext, order: Sequence[str], min_bytes: int, rates: Rates, *, recompute: bool = True
) -> SwapProblem:
    """Return an executed order as steps, items and gaps."""
    live = liveness(context.graph, order, batch_size=context.batch_size)
    loose = loose_ops(context)
    buffers = sorted((b for b in live.buffers if b.nbytes >= max(min_bytes, 1)), key=lambda b: (b.uses[0], b.root))
    places = sorted({use for buffer in buffers for use in buffer.uses if order[use] not in loose})
    if not places:
        return SwapProblem(context, live, (), (), (), (), ())
    steps = tuple(order[place] for place in places)
    items = tuple(_item(buffer, places) for buffer in buffers)
    times = tuple(op_time_ns(context.graph, context.graph.ops[name], rates, context.batch_size) for name in steps)
    recompute_finder = RecomputeFinder(context, items, rates, loose) if recompute else None
    gap_finder = _GapFinder(context, order, places, loose, recompute_finder)
    pairs = enumerate(zip(buffers, items, strict=True))
    gaps = tuple(gap for number, (buffer, item) in pairs for gap in gap_finder.gaps(number, buffer, item))
    return SwapProblem(context, live, steps, times, _memory(live, places), items, gaps)


def loose_ops(context: GraphContext) -> frozenset[str]:
    """Return the ops that no edge of a plan may touch: in frames, conditional, collectives and all after these."""
    waits = Waits(context.graph)
    behind: set[str] = set()
    for name in waits.sorted:
        if is_collective(context.graph.ops[name]) or not behind.isdisjoint(waits.firsts[name]):
            behind.add(name)
    stays = {
        name for name in context.graph.ops if not context.may_be_waited_for(name) or not context.runs_on_device(name)
    }
    return frozenset(behind | stays)


def step_of(places: Sequence[int], place: int) -> int:
    """Return the step at a position of the order, or the next one after it."""
    return min(bisect_left(places, place), len(places) - 1)


def _item(buffer: Buffer, places: Sequence[int]) -> Item:
    uses = tuple(sorted({step_of(places, use) for use in buffer.uses}))
    if buffer.is_held:
        return Item(buffer.root, buffer.nbytes, uses, len(places) - 1)
    is_taken_over = buffer.last < buffer.uses[-1]
    return Item(buffer.root, buffer.nbytes, uses, uses[-1] - is_taken_over)


def _memory(live: Liveness, places: Sequence[int]) -> tuple[int, ...]:
    """Return the memory while each step runs, and what runs between it and the one before."""
    begins = (0, *(place + 1 for place in places[:-1]))
    ends = (*(place + 1 for place in places[:-1]), len(live.memory))
    return tuple(max(live.memory[begin:end]) for begin, end in zip(begins, ends, strict=True))


@dataclass(frozen=True)
class _GapFinder:
    context: GraphContext
    order: Sequence[str]
    places: Sequence[int]
    loose: frozenset[str]
    recompute_finder: RecomputeFinder | None

    def gaps(self, number: int, buffer: Buffer, item: Item) -> list[Gap]:
        """Return when an item could be absent."""
        if self.order[buffer.uses[0]] in self.loose or buffer.is_held:
            return []
        if not self.context.filters.takes_source(self.context.graph.ops[buffer.root.op]):
            return []
        return [
            Gap(
                number,
                start,
                end,
                item.nbytes,
                self.recompute_finder.recomputation(number, end) if self.recompute_finder else None,
            )
            for start, end in zip(item.uses, item.uses[1:], strict=False)
            if end - start >= 2 and self._may_return(buffer, end)
        ]

    def _may_return(self, buffer: Buffer, end: int) -> bool:
        """Return True if all consumers of the buffer from a step on may use the swapped-in tensor instead."""
        late = (self.order[use] for use in buffer.uses if step_of(self.places, use) >= end)
        ops = [self.context.graph.ops[name] for name in late]
        return all(op.name not in self.loose and self.context.filters.takes_consumer(op) for op in ops)
