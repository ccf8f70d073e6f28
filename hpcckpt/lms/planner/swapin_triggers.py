"""When tensors come back: control edges from ops to swap-ins, and those of the synchronous modes. Pure.

None of them closes a cycle, starts where an op may be skipped, or ends at a collective.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from hpcckpt.lms.graph.filters import VARIABLES
from hpcckpt.lms.graph.graph import Graph, Op, Use
from hpcckpt.lms.graph.graph_context import GraphContext
from hpcckpt.lms.graph.levels import EXIT, MERGE, SWITCH, Levels
from hpcckpt.lms.planner.acyclic_edges import Ordering
from hpcckpt.lms.planner.plan import PREFIX, SwapOut

SEARCHED_LEVELS = 10
FIRST_AHEAD = 3
_MOVES_NOTHING = VARIABLES | {"Const", "HostConst"}


@dataclass(frozen=True, slots=True)
class Return:
    """A swap-in, whose tensor it brings, and the first op that takes it."""

    name: str
    source: str
    first: str


class Edges:
    """Control edges that were added so far, in order; each is safe."""

    def __init__(self, context: GraphContext, levels: Levels, edited: Graph, returns: Iterable[Return] = ()) -> None:
        self.added: list[tuple[str, str]] = []
        self.context, self.levels, self.edited = context, levels, edited
        just_before = {back.name: levels[back.first] - 0.5 for back in returns}
        self._ordering = Ordering(edited, {**levels.of, **just_before})

    def add(self, first: str, then: str) -> bool:
        """Make `then` wait for `first`; return True if it does."""
        if not (self._may(first, is_start=True) and self._may(then, is_start=False)):
            return False
        if self._ordering.has(first, then):
            return True
        if not self._ordering.add(first, then):
            return False
        self.added.append((first, then))
        return True

    def _may(self, name: str, *, is_start: bool) -> bool:
        if name.startswith(PREFIX) and name not in self.context.graph.ops:
            return not is_start or self._is_always_run(name)
        return self.context.may_be_waited_for(name) if is_start else self.context.may_wait(name)

    def _is_always_run(self, swap: str) -> bool:
        return all(use.op not in self.context.conditional for use in self.edited.ops[swap].inputs)

    def is_on_device(self, name: str) -> bool:
        """Return True if an op of the edited graph is on the accelerator and runs; swap nodes are not."""
        return name in self.context.graph.ops and self.context.runs_on_device(name)


# -- by distance


def lead(edges: Edges, returns: Iterable[Return], ahead: int) -> None:
    """Let each swap-in wait for an op that is `ahead` levels before its first consumer."""
    for each, its_ahead in _with_ahead(edges.levels, returns, ahead):
        trigger = find_trigger(edges, each, its_ahead)
        if trigger is None or not edges.add(trigger, each.name):
            synchronize(edges, each.name, each.first)


def _with_ahead(levels: Levels, returns: Iterable[Return], ahead: int) -> Iterator[tuple[Return, int]]:
    """Give each swap-in its `ahead`: below 0, the gap to the swap-ins before it."""
    in_order = sorted(returns, key=lambda each: (levels[each.first], each.name))
    distinct = sorted({levels[each.first] for each in in_order})
    gaps = {level: level - before for before, level in pairwise(distinct)}
    for each in in_order:
        yield each, ahead if ahead >= 0 else gaps.get(levels[each.first], FIRST_AHEAD)


def find_trigger(edges: Edges, back: Return, ahead: int) -> str | None:
    """Return the op that a swap-in waits for, the first by name on the nearest level that has one."""
    top = edges.levels[back.first] - ahead - 1
    bottom = max(top - SEARCHED_LEVELS + 1, edges.levels[back.source] + 1)
    behind = _ancestors(edges, back.first, bottom)
    for level in range(top, bottom - 1, -1):
        for name in edges.levels.ops[level]:
            if name in behind and _may_trigger(edges.context, edges.context.graph.ops[name]):
                return name
    return None


def _ancestors(edges: Edges, name: str, bottom: int) -> set[str]:
    ops = edges.context.graph.ops
    found, todo = {name}, [name]
    while todo:
        for use in ops[todo.pop()].inputs:
            if use.op not in found and edges.levels[use.op] >= bottom:
                found.add(use.op)
                todo.append(use.op)
    return found


def _may_trigger(context: GraphContext, op: Op) -> bool:
    if "/cond/" in op.name and op.type not in MERGE | SWITCH:
        return False
    if "while/" in op.name and op.name in context.loops and op.type not in EXIT:
        return False
    return context.runs_on_device(op.name) and context.may_be_waited_for(op.name)


# -- bounded


def bound(edges: Edges, outs: Iterable[SwapOut], window: int) -> None:
    """Let what makes a tensor that goes wait until no more than `window` bytes would be on their way out with it."""
    underway: deque[SwapOut] = deque()
    nbytes = 0
    for out in sorted(outs, key=lambda out: (edges.levels[out.tensor.op], out.name)):
        underway.append(out)
        nbytes += out.nbytes
        while nbytes > window and len(underway) > 1:
            first = underway.popleft()
            nbytes -= first.nbytes
            edges.add(first.name, out.tensor.op)


# -- synchronous


def synchronize(edges: Edges, back: str, first: str) -> None:
    """Let what brings a tensor to `first` wait until all else is there that `first` takes.

    If that is nothing that can be waited for, or has been there for long, as weights have, it waits for the level
    before; if there is nothing either, for the one before that, and so on.
    """
    others = sorted({use.op for use in edges.edited.ops[first].inputs} - {back})
    level = edges.levels[first] - 1
    bottom = max(level - SEARCHED_LEVELS, 0)
    awaited = _wait(edges, back, others)
    while level > bottom and not any(edges.levels[name] > bottom for name in awaited):
        awaited = _wait(edges, back, edges.levels.ops[level])
        level -= 1


def _wait(edges: Edges, then: str, firsts: Iterable[str]) -> list[str]:
    """Let an op wait for those of others that are on the device; return for which it does."""
    return [first for first in firsts if edges.is_on_device(first) and edges.add(first, then)]


def synchronize_out(edges: Edges) -> None:
    """Let compute wait for each copy from device to host: the producer's other consumers wait for the host's op."""
    for op in _host_ops(edges):
        producers = {use.op for use in op.inputs if edges.is_on_device(use.op)}
        if len(producers) == 1:
            for name in _consumers(edges, producers.pop()):
                if name != op.name:
                    edges.add(op.name, name)


def synchronize_in(edges: Edges) -> None:
    """Let each copy from host to device wait until its one consumer lacks nothing else."""
    for op in _host_ops(edges):
        consumers = _consumers(edges, op.name)
        if len(consumers) == 1:
            synchronize(edges, op.name, consumers[0])


def _host_ops(edges: Edges) -> Iterator[Op]:
    for name, op in edges.edited.ops.items():
        is_ours = name not in edges.context.graph.ops
        if is_ours or (not edges.context.is_device_op(op) and op.type not in _MOVES_NOTHING):
            yield op


def _consumers(edges: Edges, name: str) -> list[str]:
    uses = (Use(name, number) for number in range(len(edges.edited.ops[name].outputs)))
    slots = (slot for use in uses for slot in edges.edited.consumers.get(use, ()))
    return sorted({slot.op for slot in slots if edges.is_on_device(slot.op)})
