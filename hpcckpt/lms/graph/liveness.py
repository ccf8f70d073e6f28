"""Exact liveness: what is in memory while each op of an executed order runs. Pure.

The rules of TensorFlow's executor: an op's outputs are allocated while its inputs are there; a buffer is freed when the
last op that takes it, or an alias of it, has run; a kernel that supports it overwrites an input that no other op needs.
Scratch memory of kernels is not counted.

Caveats. In-place forwarding is assumed where `hpcckpt.lms.graph.op_traits.IN_PLACE` says that the kernel tries it and
the input ends there; a kernel that another library replaces (oneDNN) may decide otherwise. Variables, constants and
batches that the input pipeline lends are not the step's memory and are not counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from hpcckpt.errors import StateError
from hpcckpt.lms.graph.aliases import Aliases
from hpcckpt.lms.graph.graph import Graph, Op, Use
from hpcckpt.lms.graph.levels import awaited
from hpcckpt.lms.graph.op_traits import HELD_BY_CALLER, IN_PLACE, is_resident


@dataclass(frozen=True, slots=True)
class Buffer:
    """Memory that one op allocates, or takes over from one of its inputs, and others use."""

    root: Use
    """The tensor that was first in it."""
    nbytes: int
    uses: tuple[int, ...]
    """Positions of its producer and its consumers in the order, including those of its aliases."""
    last: int
    """It is in memory while the ops from `uses[0]` to this one run."""
    is_held: bool = False
    """The caller holds it: it stays in memory to the end."""


@dataclass(frozen=True)
class Liveness:
    """Memory over an executed order."""

    order: tuple[str, ...]
    buffers: tuple[Buffer, ...]

    @cached_property
    def memory(self) -> tuple[int, ...]:
        """Bytes in memory while each op runs."""
        change = [0] * (len(self.order) + 1)
        for buffer in self.buffers:
            change[buffer.uses[0]] += buffer.nbytes
            change[buffer.last + 1] -= buffer.nbytes
        return tuple(accumulate(change[:-1]))

    @property
    def peak(self) -> int:
        """The most bytes in memory at any time."""
        return max(self.memory, default=0)

    @property
    def peak_at(self) -> int:
        """Where in the order the peak is reached first; -1 in an order without ops."""
        return self.memory.index(self.peak) if self.order else -1

    def live_at(self, place: int) -> tuple[Buffer, ...]:
        """Return what is in memory while an op runs, the largest first."""
        found = (buffer for buffer in self.buffers if buffer.uses[0] <= place <= buffer.last)
        return tuple(sorted(found, key=lambda buffer: (-buffer.nbytes, buffer.root)))


def liveness(graph: Graph, order: Sequence[str], *, batch_size: int | None = None) -> Liveness:
    """Go through the ops of a graph in an order.

    Parameters
    ----------
    graph : Graph
        The graph.
    order : sequence of str
        All its ops, each once, after those that it depends on.
    batch_size : int, optional
        What an unknown first dimension counts as.

    Returns
    -------
    Liveness
        Memory over time, its peak, and what makes it.

    Raises
    ------
    StateError
        The order lacks an op, or has one before another whose outputs it takes.
    """
    waits = awaited(graph)
    place = _places(graph, order, waits)
    uses, held = _uses(graph, order, place, waits)
    sizes = {root: nbytes for root in uses if (nbytes := _nbytes(graph, root, batch_size))}
    lasts = {root: len(order) - 1 if root in held else uses[root][-1] for root in sizes}
    aliases = Aliases(graph)
    for name in order:
        taken_over = _taken_over(aliases, graph, graph.ops[name], place[name], lasts, sizes)
        if taken_over is not None:
            lasts[taken_over] -= 1
    buffers = (Buffer(root, sizes[root], tuple(uses[root]), lasts[root], root in held) for root in sizes)
    return Liveness(tuple(order), tuple(buffers))


def _places(graph: Graph, order: Sequence[str], waits: Mapping[str, frozenset[str]]) -> Mapping[str, int]:
    place = {name: number for number, name in enumerate(order)}
    if len(place) != len(order) or place.keys() != graph.ops.keys():
        missing = sorted(graph.ops.keys() ^ place.keys())[:3]
        raise StateError(f"the order is not one of this graph's ops: {missing or 'it has ops twice'}")
    for op in graph.ops.values():
        late = [use.op for use in op.inputs if use.op in waits[op.name] and place[use.op] >= place[op.name]]
        if late:
            raise StateError(f"the order has {op.name!r} before {late[0]!r}, whose output it takes")
    return place


def _uses(
    graph: Graph, order: Sequence[str], place: Mapping[str, int], waits: Mapping[str, frozenset[str]]
) -> tuple[dict[Use, list[int]], set[Use]]:
    """Return where each buffer is used, sorted, and which the caller takes.

    What a loop's next iteration takes is in memory as what this one took: it is not counted a second time.
    """
    aliases = Aliases(graph)
    uses: dict[Use, list[int]] = {}
    held: set[Use] = set()
    for name in order:
        op = graph.ops[name]
        for number in range(len(op.outputs)):
            uses.setdefault(aliases.root(Use(name, number)), []).append(place[name])
        for use in op.inputs:
            if use.op not in waits[name]:
                continue
            root = aliases.root(use)
            uses.setdefault(root, []).append(place[name])
            if op.type in HELD_BY_CALLER:
                held.add(root)
    return {root: sorted(set(places)) for root, places in uses.items()}, held


def _nbytes(graph: Graph, root: Use, batch_size: int | None) -> int:
    op = graph.ops[root.op]
    return 0 if is_resident(op) else op.outputs[root.number].nbytes(batch_size)


def _taken_over(
    aliases: Aliases, graph: Graph, op: Op, place: int, lasts: Mapping[Use, int], sizes: Mapping[Use, int]
) -> Use | None:
    """Return the buffer that an op writes its output over."""
    size = sizes.get(Use(op.name, 0))
    if size is None or op.type not in IN_PLACE:
        return None
    roots = [aliases.root(use) for use in op.inputs]
    for number in IN_PLACE[op.type]:
        root = roots[number] if number < len(roots) else None
        if root is None or sizes.get(root) != size or lasts[root] != place or roots.count(root) > 1:
            continue
        if graph.output(root).dtype == op.outputs[0].dtype:
            return root
    return None
