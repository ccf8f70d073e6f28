"""The order in which ops are made to run, so that memory over time is known and small. Pure.

A list schedule: of the ops that could run next, first those that need next to no memory; then those that free at least
as much as they take, which brings gradients of weights, and the updates made with them, close to what they use up
(TensorFlow's executor runs them late, and they hold activations); then the one that an ordinary order has first.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from hpcckpt.lms.graph.graph import Graph, Use
from hpcckpt.lms.graph.graph_context import GraphContext
from hpcckpt.lms.graph.levels import awaited
from hpcckpt.lms.graph.op_traits import HELD_BY_CALLER, is_resident

LIGHT, FREEING, RELEASING, OTHER = range(4)
Key = Mapping[str, tuple[int, ...]]


def orders(context: GraphContext, min_bytes: int) -> Iterator[tuple[str, ...]]:
    """Make orders of all ops, each after those that it waits for.

    Parameters
    ----------
    context : GraphContext
        The graph.
    min_bytes : int
        Buffers below this size do not count.
    """
    waits = Waits(context.graph)
    touched = _Touched.of(context, min_bytes)
    for key in (_late_sources(waits, touched), _critical_path(waits)):
        yield tuple(_listed(waits, touched, key))


def refined(context: GraphContext, measured: Sequence[str], min_bytes: int) -> tuple[str, ...]:
    """Return a measured order with what frees memory moved to the front."""
    place = {name: (number,) for number, name in enumerate(measured)}
    waits = Waits(context.graph)
    key = {name: place.get(name, (len(place),)) for name in waits.firsts}
    return tuple(_listed(waits, _Touched.of(context, min_bytes), key))


@dataclass(frozen=True)
class Waits:
    """Which ops each op waits for, and which wait for it; the way back in a while loop is left out."""

    graph: Graph

    @cached_property
    def firsts(self) -> Mapping[str, tuple[str, ...]]:
        """What each op waits for, sorted."""
        return {name: tuple(sorted(firsts)) for name, firsts in awaited(self.graph).items()}

    @cached_property
    def thens(self) -> Mapping[str, tuple[str, ...]]:
        """What waits for each op, sorted."""
        found: dict[str, list[str]] = {name: [] for name in self.firsts}
        for name, firsts in self.firsts.items():
            for first in firsts:
                found[first].append(name)
        return {name: tuple(thens) for name, thens in found.items()}

    @cached_property
    def sorted(self) -> tuple[str, ...]:
        """All ops, each after those that it waits for."""
        missing = {name: len(firsts) for name, firsts in self.firsts.items()}
        found = [name for name, n in missing.items() if n == 0]
        for name in found:
            for then in self.thens[name]:
                missing[then] -= 1
                if missing[then] == 0:
                    found.append(then)
        return tuple(found)


@dataclass(frozen=True)
class _Touched:
    """The buffers that count: how large they are, which each op allocates and takes, which op takes each."""

    sizes: Mapping[Use, int]
    made: Mapping[str, int]
    taken: Mapping[str, tuple[Use, ...]]
    takers: Mapping[Use, frozenset[str]]
    held: frozenset[Use] = field(default_factory=frozenset)

    @classmethod
    def of(cls, context: GraphContext, min_bytes: int) -> _Touched:
        ops, root = context.graph.ops, context.aliases.root
        sizes: dict[Use, int] = {}
        for name, op in ops.items():
            own = (Use(name, number) for number in range(len(op.outputs)) if not is_resident(op))
            sizes |= {
                use: context.nbytes(use) for use in own if root(use) == use and context.nbytes(use) >= max(min_bytes, 1)
            }
        taken = {name: tuple(sorted({root(use) for use in op.inputs} & sizes.keys())) for name, op in ops.items()}
        takers: dict[Use, set[str]] = {}
        for name, roots in taken.items():
            for each in roots:
                takers.setdefault(each, set()).add(name)
        made: dict[str, int] = {}
        for use, nbytes in sizes.items():
            made[use.op] = made.get(use.op, 0) + nbytes
        held = frozenset(each for name, roots in taken.items() if ops[name].type in HELD_BY_CALLER for each in roots)
        return cls(sizes, made, taken, {use: frozenset(names) for use, names in takers.items()}, held)


def _listed(waits: Waits, touched: _Touched, key: Key) -> Iterator[str]:
    missing = {name: len(firsts) for name, firsts in waits.firsts.items()}
    left = {use: set(names) for use, names in touched.takers.items()}
    ready: list[tuple[tuple[int, int], tuple[int, ...], str]] = []
    done: set[str] = set()

    def push(name: str) -> None:
        heapq.heappush(ready, (_urgency(touched, left, name), key[name], name))

    for name in [name for name, n in missing.items() if n == 0]:
        push(name)
    while ready:
        name = heapq.heappop(ready)[2]
        if name in done:
            continue
        done.add(name)
        yield name
        for use in touched.taken[name]:
            left[use].discard(name)
            if len(left[use]) == 1 and missing[last := next(iter(left[use]))] == 0:
                push(last)
        for then in waits.thens[name]:
            missing[then] -= 1
            if missing[then] == 0:
                push(then)


def _urgency(touched: _Touched, left: Mapping[Use, set[str]], name: str) -> tuple[int, int]:
    """Return what makes an op be taken before others, the less the sooner: its kind, and what it adds to memory."""
    taken, made = touched.taken[name], touched.made.get(name, 0)
    if not taken and not made:
        return LIGHT, 0
    freed = sum(touched.sizes[use] for use in taken if len(left[use]) == 1 and use not in touched.held)
    if not made:
        return (FREEING, -freed) if freed else (OTHER, 0)
    return (RELEASING, made - freed) if made <= freed else (OTHER, 0)


def _levels(waits: Waits) -> dict[str, int]:
    level: dict[str, int] = {}
    for name in waits.sorted:
        level[name] = 1 + max((level[first] for first in waits.firsts[name]), default=-1)
    return level


def _late_sources(waits: Waits, touched: _Touched) -> Key:
    """Order by level; what takes no buffer that counts comes just before the first that waits for it."""
    level = _levels(waits)
    late = dict(level)
    for name in reversed(waits.sorted):
        thens = waits.thens[name]
        if not touched.taken[name] and thens:
            late[name] = min(late[then] for then in thens) - 1
    return {name: (n,) for name, n in late.items()}


def _critical_path(waits: Waits) -> Key:
    """Order by how much depends on an op, the most first."""
    level, tail = _levels(waits), dict.fromkeys(waits.sorted, 0)
    for name in reversed(waits.sorted):
        tail[name] = 1 + max((tail[then] for then in waits.thens[name]), default=-1)
    return {name: (-tail[name], level[name]) for name in level}
