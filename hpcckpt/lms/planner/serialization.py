"""Serialization: ops of one level run one after the other, so that less is alive at a time. Pure.

A level is named by its index, levels by a slice. A slice of TFLMSv2 takes in its end: ``'3:5'`` is 3, 4 and 5, as the
original's own documentation counts them.
"""

from __future__ import annotations

from collections.abc import Iterable

from hpcckpt.lms.graph.activity import LEARNING_PHASE, is_initializer
from hpcckpt.lms.graph.filters import is_excluded_type
from hpcckpt.lms.graph.graph import Graph, Op
from hpcckpt.lms.graph.graph_context import GraphContext
from hpcckpt.lms.graph.levels import Levels
from hpcckpt.lms.planner.acyclic_edges import Ordering
from hpcckpt.lms.settings import read_slice

GIB = 1 << 30


def parse_levels(given: Iterable[int | str], n_levels: int) -> frozenset[int]:
    """Return the indices of levels that integers and slices name, of those that there are.

    Negative ones count from the end.

    Raises
    ------
    OptionError
        A text is no slice, or its step is 0 or less.
    """
    found: set[int] = set()
    for each in given:
        found |= set(_slice(each, n_levels))
    return frozenset(found)


def _slice(given: int | str, n_levels: int) -> range:
    if isinstance(given, int):
        return range(given % n_levels, given % n_levels + 1) if -n_levels <= given < n_levels else range(0)
    start, stop, step = read_slice(given)
    first = _clamped(0 if start is None else start, n_levels)
    last = _clamped(n_levels - 1 if stop is None else stop, n_levels)
    return range(max(first, 0), min(last, n_levels - 1) + 1, step or 1)


def _clamped(index: int, n_levels: int) -> int:
    return index + n_levels if index < 0 else index


def chosen_levels(context: GraphContext, given: Iterable[int | str], by_size: float) -> tuple[int, ...]:
    """Return the levels to serialize: those named, and with `by_size` those that need more than that many GiB."""
    levels = context.levels
    found = set(parse_levels(given, len(levels)))
    if by_size > 0:
        found |= {index for index, names in enumerate(levels.ops) if _nbytes(context, names) > by_size * GIB}
    after = _last_assign(context.graph, levels)
    return tuple(sorted(index for index in found if index > after))


def _nbytes(context: GraphContext, names: Iterable[str]) -> int:
    return sum(op_nbytes(context, name) for name in names if context.runs_on_device(name))


def op_nbytes(context: GraphContext, name: str) -> int:
    """Return how many bytes an op takes and puts out."""
    op = context.graph.ops[name]
    taken = sum(context.nbytes(use) for use in op.inputs)
    return taken + sum(output.nbytes(context.batch_size) for output in op.outputs)


def _last_assign(graph: Graph, levels: Levels) -> int:
    """Return the last level that gives a variable its first value; -1 if none does."""
    return max((levels[op.name] for op in graph.ops.values() if is_initializer(graph, op)), default=-1)


def serializing_edges(context: GraphContext, chosen: Iterable[int]) -> tuple[tuple[str, str], ...]:
    """Return control edges that chain the ops of each level by name, and each level after the one before it.

    An op that the chain already waits for is left out: levels do not see what is inside loops, so that what is after a
    loop may have a level before what leads to it.
    """
    ordering = Ordering(context.graph, context.levels.of)
    names = (name for index in chosen for name in context.levels.ops[index])
    edges: list[tuple[str, str]] = []
    last = ""
    for name in names:
        if not _may_be_chained(context, context.graph.ops[name]):
            continue
        if last and not ordering.has(last, name):
            if not ordering.add(last, name):
                continue
            edges.append((last, name))
        last = name
    return tuple(edges)


def _may_be_chained(context: GraphContext, op: Op) -> bool:
    if "/cond/" in op.name or "loss" in op.name or LEARNING_PHASE in op.name:
        return False
    is_meant = not is_excluded_type(op) and context.filters.takes_source(op) and context.filters.takes_consumer(op)
    return is_meant and context.runs_on_device(op.name) and context.may_be_waited_for(op.name)
