"""The histogram of distances: how many edges there are over how many levels. Pure."""

from __future__ import annotations

from collections import Counter

from hpcckpt.lms.graph import Graph
from hpcckpt.lms.levels import Levels


def histogram(graph: Graph, levels: Levels) -> dict[int, int]:
    """Return how many edges, of data and of control, have each distance.

    Edges of what has no level, inside while loops, are left out; without loops the numbers add up to `graph.n_edges`.
    """
    found: Counter[int] = Counter()
    for op in graph.ops.values():
        firsts = [use.op for use in op.inputs] + list(op.controls)
        found.update(levels.distance(first, op.name) for first in firsts if min(levels[first], levels[op.name]) >= 0)
    return dict(sorted(found.items()))
