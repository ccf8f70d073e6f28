"""Levels: the distance of each op from the start of the graph, and so between ops. Pure.

The level of an op is the length of the longest path that leads to it; TFLMSv2 calls it the categorized topological
sort. A while loop becomes a short straight path: of what is inside only Enter, Merge, Switch and Exit have a level.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from hpcckpt.errors import OptionError
from hpcckpt.lms.graph.graph import Graph, Op

ENTER = frozenset({"Enter", "RefEnter"})
EXIT = frozenset({"Exit", "RefExit"})
MERGE = frozenset({"Merge", "RefMerge", "_XlaMerge"})
SWITCH = frozenset({"Switch", "RefSwitch", "_SwitchN"})
NEXT_ITERATION = frozenset({"NextIteration", "RefNextIteration"})
LOOP_CONDITION = "LoopCond"
LOOP_FUNCTIONS = frozenset({"While", "StatelessWhile", "_While"})
_WITH_LEVEL_IN_LOOPS = ENTER | EXIT | MERGE | SWITCH


@dataclass(frozen=True)
class Levels:
    """The level of each op that has one, and the ops of each level by name."""

    of: Mapping[str, int]
    ops: tuple[tuple[str, ...], ...]

    def __len__(self) -> int:
        return len(self.ops)

    def __getitem__(self, name: str) -> int:
        """Return an op's level; -1 if it has none."""
        return self.of.get(name, -1)

    def distance(self, first: str, then: str) -> int:
        """Return how many levels `then` is after `first`."""
        return self[then] - self[first]

    def in_order(self) -> Iterator[str]:
        """Yield all ops, level by level."""
        for names in self.ops:
            yield from names


def loop_ops(graph: Graph) -> frozenset[str]:
    """Return the ops of while loops: by their frames or, in a graph without frames, by ``while/`` in the name."""
    framed = frozenset(name for name, op in graph.ops.items() if op.frame)
    return framed or frozenset(name for name in graph.ops if "while/" in name)


def has_loops(graph: Graph) -> bool:
    """Return True if there is a while loop, as a frame or as an op that calls functions."""
    return bool(loop_ops(graph)) or any(op.type in LOOP_FUNCTIONS for op in graph.ops.values())


def awaited(graph: Graph) -> dict[str, frozenset[str]]:
    """Return which ops each op waits for, without cycles: a while loop as one pass through its body.

    A Merge does not wait for the NextIteration that leads back to it; instead the loop's Exits do. So what the body
    takes from outside is never put after the loop's end, which would stop the loop for ever.
    """
    back = _back_edges(graph)
    found = {}
    for name, op in graph.ops.items():
        firsts = {*(use.op for use in op.inputs), *op.controls}
        if op.type in MERGE:
            firsts = {
                first for first in firsts if first not in graph.ops or graph.ops[first].type not in NEXT_ITERATION
            }
        found[name] = frozenset(firsts | back.get(_loop_of_exit(graph, op), frozenset()))
    return found


def _back_edges(graph: Graph) -> dict[str, frozenset[str]]:
    """Return the NextIterations of each loop, by the name of its LoopCond."""
    found: dict[str, frozenset[str]] = {}
    for op in graph.ops.values():
        if loop := _loop_of_switch(graph, op):
            merge = graph.ops.get(op.inputs[0].op)
            uses = merge.inputs if merge is not None and merge.type in MERGE else ()
            back = {use.op for use in uses if use.op in graph.ops and graph.ops[use.op].type in NEXT_ITERATION}
            found[loop] = found.get(loop, frozenset()) | back
    return found


def _loop_of_switch(graph: Graph, op: Op | None) -> str:
    if op is None or op.type not in SWITCH or len(op.inputs) < 2:
        return ""
    condition = graph.ops.get(op.inputs[1].op)
    return condition.name if condition is not None and condition.type == LOOP_CONDITION else ""


def _loop_of_exit(graph: Graph, op: Op) -> str:
    return _loop_of_switch(graph, graph.ops.get(op.inputs[0].op)) if op.type in EXIT and op.inputs else ""


def sort(graph: Graph) -> Levels:
    """Give each op its level.

    Raises
    ------
    OptionError
        Ops wait for each other in a circle.
    """
    loops = loop_ops(graph)
    firsts = awaited(graph)
    waits_for = {
        name: frozenset(first for first in firsts[name] if not _is_dropped(graph, op, first, loops))
        for name, op in graph.ops.items()
        if name not in loops or op.type in _WITH_LEVEL_IN_LOOPS
    }
    of = _longest_paths(waits_for)
    if len(of) < len(waits_for):
        stuck = min(name for name in waits_for if name not in of)
        raise OptionError(f"graph: op {stuck!r} waits for itself, through others; its levels cannot be computed")
    levels: list[list[str]] = [[] for _ in range(max(of.values(), default=-1) + 1)]
    for name in sorted(of):
        levels[of[name]].append(name)
    return Levels(of, tuple(map(tuple, levels)))


def _is_dropped(graph: Graph, op: Op, name: str, loops: frozenset[str]) -> bool:
    if name not in graph.ops:
        raise OptionError(f"graph: op {op.name!r} takes from {name!r}, which is not there; import the whole graph")
    return name in loops and graph.ops[name].type not in _WITH_LEVEL_IN_LOOPS


def _longest_paths(waits_for: Mapping[str, frozenset[str]]) -> dict[str, int]:
    then: dict[str, list[str]] = {}
    for name, firsts in waits_for.items():
        for first in firsts:
            then.setdefault(first, []).append(name)
    missing = {name: len(firsts) for name, firsts in waits_for.items()}
    ready = deque(name for name, n in missing.items() if n == 0)
    of = dict.fromkeys(ready, 0)
    reached: dict[str, int] = {}
    while ready:
        first = ready.popleft()
        for name in then.get(first, ()):
            reached[name] = max(reached.get(name, 0), of[first] + 1)
            missing[name] -= 1
            if missing[name] == 0:
                of[name] = reached[name]
                ready.append(name)
    return of


# -- histogram of distances -----------------------------------------------------------------------


def histogram(graph: Graph, levels: Levels) -> dict[int, int]:
    """Return how many edges, of data and of control, have each distance.

    Edges of what has no level, inside while loops, are left out; without loops the numbers add up to `graph.n_edges`.
    """
    found: Counter[int] = Counter()
    for op in graph.ops.values():
        firsts = [use.op for use in op.inputs] + list(op.controls)
        found.update(levels.distance(first, op.name) for first in firsts if min(levels[first], levels[op.name]) >= 0)
    return dict(sorted(found.items()))
