"""How to have a tensor again without storing it: by running again the cheap ops that made it. Pure.

Batch normalization and ReLU of what a convolution left, say: the convolution's output is stored anyway, for the
gradient of the batch normalization. SuperNeurons (PPoPP 2018) found such layers; Capuchin (ASPLOS 2020) chose by
tensor between this and swapping, as the cost planner does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from hpcckpt.lms.aliases import OTHER_VIEW, SAME_VIEW
from hpcckpt.lms.graph import Op, Use
from hpcckpt.lms.levels import SWITCH
from hpcckpt.lms.op_times import Rates, op_time_ns
from hpcckpt.lms.scene import Scene
from hpcckpt.lms.traits import CHEAP, IN_PLACE

MAX_OPS = 12
_VIEWS = (SAME_VIEW | OTHER_VIEW) - SWITCH


@dataclass(frozen=True, slots=True)
class Item:
    """A buffer worth moving; `uses` and `last` are numbers of steps, `uses[0]` is the one that makes it.

    It is there while the steps from that one to `last` run.
    """

    root: Use
    nbytes: int
    uses: tuple[int, ...]
    last: int


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to compute an item again: ops in order, from items that are stored anyway."""

    ops: tuple[str, ...]
    sources: tuple[int, ...]
    time_ns: int
    extra: int
    """Bytes of what is made on the way and not kept."""


@dataclass
class _Found:
    """What a recipe is made of, as far as it is known."""

    ops: list[str] = field(default_factory=list)
    sources: set[int] = field(default_factory=set)


class Recipes:
    """Finds recipes for the items of a graph."""

    def __init__(self, scene: Scene, items: Sequence[Item], rates: Rates, loose: frozenset[str]) -> None:
        self._scene, self._items, self._rates, self._loose = scene, items, rates, loose
        self._numbers = {item.root: number for number, item in enumerate(items)}

    def recipe(self, number: int, step: int) -> Recipe | None:
        """Return how to have an item again just before a step, or `None` if that is not cheap."""
        found = _Found()
        if not self._collect(self._items[number].root.op, step, found):
            return None
        ops = [self._scene.graph.ops[name] for name in found.ops]
        time_ns = sum(op_time_ns(self._scene.graph, op, self._rates, self._scene.batch_size) for op in ops)
        return Recipe(tuple(found.ops), tuple(sorted(found.sources)), time_ns, self._extra(ops))

    def _collect(self, name: str, step: int, found: _Found) -> bool:
        """Add an op, behind the ops that it takes from; say whether that can be done."""
        op = self._scene.graph.ops[name]
        if name in found.ops:
            return True
        if not self._is_cheap(op) or len(found.ops) >= MAX_OPS:
            return False
        for use in op.inputs:
            number = self._numbers.get(self._scene.aliases.root(use))
            if number is None:
                continue
            if self._is_stored(number, step):
                found.sources.add(number)
            elif not self._collect(use.op, step, found):
                return False
        found.ops.append(name)
        return len(found.ops) <= MAX_OPS

    def _is_cheap(self, op: Op) -> bool:
        return op.type in CHEAP | _VIEWS and not op.is_stateful and op.name not in self._loose

    def _is_stored(self, number: int, step: int) -> bool:
        """Say whether an item is still to be taken at a step, or cannot be made again and is worth keeping."""
        item = self._items[number]
        return item.uses[-1] >= step or not self._is_cheap(self._scene.graph.ops[item.root.op])

    def _extra(self, ops: Sequence[Op]) -> int:
        made = {Use(op.name, number) for op in ops[:-1] for number in range(len(op.outputs))} & self._numbers.keys()
        readers = [op for op in ops for use in op.inputs if self._scene.aliases.root(use) in made]
        for op in readers:
            over = [
                self._scene.aliases.root(op.inputs[each]) for each in IN_PLACE.get(op.type, ()) if each < len(op.inputs)
            ]
            mine = [root for root in over if root in made and sum(root in self._roots(other) for other in readers) == 1]
            made -= set(mine[:1])
        return sum(self._scene.nbytes(use) for use in made)

    def _roots(self, op: Op) -> list[Use]:
        return [self._scene.aliases.root(use) for use in op.inputs]
