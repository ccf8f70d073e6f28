"""What can be done about memory: the steps of an executed order, and which buffers could be absent between two. Pure.

Only ops that touch a buffer worth moving count as steps; the others run when they can and need next to no memory.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from hpcckpt.lms.filters import is_collective
from hpcckpt.lms.liveness import Buffer, Liveness, liveness
from hpcckpt.lms.op_times import Rates, op_time_ns
from hpcckpt.lms.recipes import Item, Recipe, Recipes
from hpcckpt.lms.scene import Scene
from hpcckpt.lms.schedule import Waits


@dataclass(frozen=True, slots=True)
class Gap:
    """A time in which nobody needs an item: behind step `start`, before step `end`."""

    item: int
    start: int
    end: int
    nbytes: int
    recipe: Recipe | None = None


@dataclass(frozen=True)
class Problem:
    """What a planner chooses from.

    Attributes
    ----------
    steps : tuple of str
        The ops that count, in their order.
    times : tuple of int
        How long each takes, in nanoseconds.
    memory : tuple of int
        Bytes in memory while each runs, with everything kept.
    items : tuple of Item
        Buffers worth moving, in the order in which they are made.
    gaps : tuple of Gap
        When they could be absent.
    """

    scene: Scene
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


def problem(scene: Scene, order: Sequence[str], min_bytes: int, rates: Rates, *, recompute: bool = True) -> Problem:
    """Look at an executed order as steps, items and gaps."""
    live = liveness(scene.graph, order, batch_size=scene.batch_size)
    loose = loose_ops(scene)
    buffers = sorted((b for b in live.buffers if b.nbytes >= max(min_bytes, 1)), key=lambda b: (b.uses[0], b.root))
    places = sorted({use for buffer in buffers for use in buffer.uses if order[use] not in loose})
    if not places:
        return Problem(scene, live, (), (), (), (), ())
    steps = tuple(order[place] for place in places)
    items = tuple(_item(buffer, places) for buffer in buffers)
    times = tuple(op_time_ns(scene.graph, scene.graph.ops[name], rates, scene.batch_size) for name in steps)
    recipes = Recipes(scene, items, rates, loose) if recompute else None
    finder = _GapFinder(scene, order, places, loose, recipes)
    pairs = enumerate(zip(buffers, items, strict=True))
    gaps = tuple(gap for number, (buffer, item) in pairs for gap in finder.gaps(number, buffer, item))
    return Problem(scene, live, steps, times, _memory(live, places), items, gaps)


def loose_ops(scene: Scene) -> frozenset[str]:
    """Return the ops that no edge of a plan may touch: in frames, conditional, collectives and all behind these."""
    waits = Waits(scene.graph)
    behind: set[str] = set()
    for name in waits.sorted:
        if is_collective(scene.graph.ops[name]) or not behind.isdisjoint(waits.firsts[name]):
            behind.add(name)
    stays = {name for name in scene.graph.ops if not scene.may_be_waited_for(name) or not scene.runs_on_device(name)}
    return frozenset(behind | stays)


def step_of(places: Sequence[int], place: int) -> int:
    """Return the step that stands at a place of the order, or the next one behind it."""
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
    scene: Scene
    order: Sequence[str]
    places: Sequence[int]
    loose: frozenset[str]
    recipes: Recipes | None

    def gaps(self, number: int, buffer: Buffer, item: Item) -> list[Gap]:
        """Return when an item could be absent."""
        if self.order[buffer.uses[0]] in self.loose or buffer.is_held:
            return []
        if not self.scene.filters.takes_source(self.scene.graph.ops[buffer.root.op]):
            return []
        return [
            Gap(number, start, end, item.nbytes, self.recipes.recipe(number, end) if self.recipes else None)
            for start, end in zip(item.uses, item.uses[1:], strict=False)
            if end - start >= 2 and self._may_return(buffer, end)
        ]

    def _may_return(self, buffer: Buffer, end: int) -> bool:
        """Say whether all who take the buffer from a step on may take what came back instead."""
        late = (self.order[use] for use in buffer.uses if step_of(self.places, use) >= end)
        ops = [self.scene.graph.ops[name] for name in late]
        return all(op.name not in self.loose and self.scene.filters.takes_consumer(op) for op in ops)
