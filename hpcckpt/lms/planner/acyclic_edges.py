"""Control edges without cycles: an order of a graph's ops that is kept right as edges are added. Pure.

Pearce and Kelly's algorithm: an edge that agrees with the order costs nothing; one that does not reorders only the ops
between its ends.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from hpcckpt.lms.graph.graph import Graph
from hpcckpt.lms.graph.levels import awaited


class Ordering:
    """The ops of a graph in an order that all edges agree with.

    The way back in a while loop is no edge here.

    Parameters
    ----------
    graph : Graph
        The graph.
    rank : mapping of str to float, optional
        Where ops are wished in the first order, the lower the earlier: the nearer that is to the edges that will be
        added, the less there is to reorder.
    """

    def __init__(self, graph: Graph, rank: Mapping[str, float] = MappingProxyType({})) -> None:
        self._firsts = {name: set(firsts) for name, firsts in awaited(graph).items()}
        self._thens: dict[str, set[str]] = {name: set() for name in graph.ops}
        for name, firsts in self._firsts.items():
            for first in firsts:
                self._thens[first].add(name)
        self._place = _places(self._firsts, self._thens, rank)

    def has(self, first: str, then: str) -> bool:
        """Return True if there is an edge, of data or of control."""
        return first in self._firsts[then]

    def add(self, first: str, then: str) -> bool:
        """Add an edge, unless it would close a cycle; return True if it is there now."""
        if first == then:
            return False
        low, high = self._place[then], self._place[first]
        if low < high:
            ahead = self._reach(then, self._thens, lambda place: place <= high)
            if first in ahead:
                return False
            self._reorder(self._reach(first, self._firsts, lambda place: place >= low), ahead)
        self._firsts[then].add(first)
        self._thens[first].add(then)
        return True

    def _reach(self, start: str, edges: Mapping[str, set[str]], is_between: Callable[[int], bool]) -> set[str]:
        found, todo = {start}, [start]
        while todo:
            near = {name for name in edges[todo.pop()] if name not in found and is_between(self._place[name])}
            found |= near
            todo += near
        return found

    def _reorder(self, behind: Iterable[str], ahead: Iterable[str]) -> None:
        in_order = sorted(behind, key=self._place.__getitem__) + sorted(ahead, key=self._place.__getitem__)
        places = sorted(self._place[name] for name in in_order)
        self._place.update(zip(in_order, places, strict=True))


def _places(firsts: Mapping[str, set[str]], thens: Mapping[str, set[str]], rank: Mapping[str, float]) -> dict[str, int]:
    missing = {name: len(each) for name, each in firsts.items()}
    ready = [(rank.get(name, 0), name) for name, n in missing.items() if n == 0]
    heapq.heapify(ready)
    place: dict[str, int] = {}
    while ready:
        _, name = heapq.heappop(ready)
        place[name] = len(place)
        for then in thens[name]:
            missing[then] -= 1
            if missing[then] == 0:
                heapq.heappush(ready, (rank.get(then, 0), then))
    if len(place) < len(firsts):
        stuck = min(name for name in firsts if name not in place)
        raise ValueError(f"op {stuck!r} waits for itself, through others")
    return place
