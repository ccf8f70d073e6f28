"""Recomputation: getting a tensor again by running the cheap ops that made it once more. Pure.

For example batch normalization and ReLU after a convolution: its output is stored anyway, for the gradient of the batch
normalization. SuperNeurons (PPoPP 2018) found such layers; Capuchin (ASPLOS 2020) chose by tensor between this and
swapping, as the cost planner does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from hpcckpt.lms.graph.aliases import OTHER_VIEW, SAME_VIEW
from hpcckpt.lms.graph.filters import is_reference
from hpcckpt.lms.graph.graph import Op, Use
from hpcckpt.lms.graph.graph_context import GraphContext
from hpcckpt.lms.graph.levels import SWITCH
from hpcckpt.lms.graph.op_times import Rates, op_time_ns
from hpcckpt.lms.graph.op_traits import CHEAP, IN_PLACE

MAX_OPS = 12
_VIEWS = (SAME_VIEW | OTHER_VIEW) - SWITCH


@dataclass(frozen=True, slots=True)
class Item:
    """A buffer worth swapping; `uses` and `last` are numbers of steps, `uses[0]` is its producer.

    It is in memory while the steps from that one to `last` run.
    """

    root: Use
    nbytes: int
    uses: tuple[int, ...]
    last: int


@dataclass(frozen=True, slots=True)
class Recomputation:
    """How to recompute an item: ops in order, from items that are stored anyway."""

    ops: tuple[str, ...]
    sources: tuple[int, ...]
    time_ns: int
    extra: int
    """Bytes of intermediate results."""


@dataclass
class _Found:
    """A recomputation under construction."""

    ops: list[str] = field(default_factory=list)
    sources: set[int] = field(default_factory=set)


class RecomputeFinder:
    """Finds how to recompute the items of a graph."""

    def __init__(self, context: GraphContext, items: Sequence[Item], rates: Rates, loose: frozenset[str]) -> None:
        self._context, self._items, self._rates, self._loose = context, items, rates, loose
        self._numbers = {item.root: number for number, item in enumerate(items)}

    def recomputation(self, number: int, step: int) -> Recomputation | None:
        """Return how to recompute an item just before a step, or `None` if that is not cheap."""
        found = _Found()
        if not self._collect(self._items[number].root.op, step, found):
            return None
        ops = [self._context.graph.ops[name] for name in found.ops]
        time_ns = sum(op_time_ns(self._context.graph, op, self._rates, self._context.batch_size) for op in ops)
        return Recomputation(tuple(found.ops), tuple(sorted(found.sources)), time_ns, self._extra(ops))

    def _collect(self, name: str, step: int, found: _Found) -> bool:
        """Add an op, after the ops it depends on; return True if possible."""
        op = self._context.graph.ops[name]
        if name in found.ops:
            return True
        if not self._is_cheap(op) or len(found.ops) >= MAX_OPS:
            return False
        for use in op.inputs:
            root = self._context.aliases.root(use)
            if is_reference(self._context.graph.ops[root.op]):  # a later step of the optimizer may have written over it
                return False
            number = self._numbers.get(root)
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
        """Return True if an item is still needed at a step, or cannot be recomputed and is worth keeping."""
        item = self._items[number]
        return item.uses[-1] >= step or not self._is_cheap(self._context.graph.ops[item.root.op])

    def _extra(self, ops: Sequence[Op]) -> int:
        made = {Use(op.name, number) for op in ops[:-1] for number in range(len(op.outputs))} & self._numbers.keys()
        readers = [op for op in ops for use in op.inputs if self._context.aliases.root(use) in made]
        for op in readers:
            over = [
                self._context.aliases.root(op.inputs[each])
                for each in IN_PLACE.get(op.type, ())
                if each < len(op.inputs)
            ]
            mine = [root for root in over if root in made and sum(root in self._roots(other) for other in readers) == 1]
            made -= set(mine[:1])
        return sum(self._context.nbytes(use) for use in made)

    def _roots(self, op: Op) -> list[Use]:
        return [self._context.aliases.root(use) for use in op.inputs]
