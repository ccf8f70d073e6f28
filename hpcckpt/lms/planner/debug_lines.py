"""What `debug` and `debug_level` print of a plan, worded as by TFLMSv2. Pure.

Level 1: the operations of each level; each swap-out and swap-in with its connections; each control edge.
Level 2: each operation with its outputs and their consumers as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from hpcckpt.lms.graph.graph import Graph, Use
from hpcckpt.lms.graph.levels import Levels
from hpcckpt.lms.planner.plan import Copy, Plan, SwapIn, SwapOut


class Line(NamedTuple):
    """A line, from which debug level on it is printed, and by how much it is indented."""

    text: str
    level: int = 1
    offset: int = 0


def debug_lines(graph: Graph, levels: Levels, plan: Plan) -> Iterator[Line]:
    """Yield the lines of a graph, as it was before, and of what a plan does to it."""
    yield Line("Operations in each topological sort level:")
    for number, names in enumerate(levels.ops):
        ops = [(name, graph.ops[name].type, graph.ops[name].device) for name in names]
        yield Line(f"[{number}]: {ops}")
    for name in levels.in_order():
        yield from _operation(graph, name)
    for out in plan.swap_outs:
        yield from _swapped_out(graph, out)
        for back in plan.swap_ins:
            if back.swap_out == out.name:
                yield from _swapped_in(graph, out, back)
    for copy in plan.copies:
        yield from _copied(graph, copy)
    yield from _control_edges(levels, plan)


def _operation(graph: Graph, name: str) -> Iterator[Line]:
    yield Line(f"Operation: {name}", 2)
    for number in range(len(graph.ops[name].outputs)):
        use = Use(name, number)
        yield Line(f"Output tensor: {use} (shape: {_shape(graph, use)})", 2, 1)
        for slot in graph.consumers.get(use, ()):
            yield Line(f"Consuming op: {slot.op}", 2, 2)


def _swapped_out(graph: Graph, out: SwapOut) -> Iterator[Line]:
    yield Line(f"Operation: {out.tensor.op}")
    yield Line(f"Swap-out: Tensor {out.tensor} (shape: {_shape(graph, out.tensor)})", offset=2)
    yield Line(f"Swap-out operation: {out.name}", offset=4)
    yield Line(f"Connect: {out.tensor.op} => {out.name}", offset=4)


def _swapped_in(graph: Graph, out: SwapOut, back: SwapIn) -> Iterator[Line]:
    yield Line(f"Swap-in: Tensor {out.tensor} (shape: {_shape(graph, out.tensor)})", offset=2)
    yield Line(f"Swap-in operation: {back.name}", offset=4)
    yield Line(f"Connect: {out.name} => {back.name}", offset=4)
    for slot in back.consumers:
        yield Line(f"Connect: {back.name} => {slot.op}", offset=4)


def _copied(graph: Graph, copy: Copy) -> Iterator[Line]:
    """Yield what the original has no words for: an operation that is computed again."""
    yield Line(f"Recompute: Operation {copy.op} (type: {graph.ops[copy.op].type})", offset=2)
    yield Line(f"Recompute operation: {copy.name}", offset=4)
    for use in copy.inputs:
        yield Line(f"Connect: {use.op} => {copy.name}", offset=4)
    for _, slot in copy.consumers:
        yield Line(f"Connect: {copy.name} => {slot.op}", offset=4)


def _control_edges(levels: Levels, plan: Plan) -> Iterator[Line]:
    """Yield the edges that swap-ins wait for, each under its consumer; then all others."""
    waits: dict[str, list[str]] = {}
    for first, then in plan.edges:
        waits.setdefault(then, []).append(first)
    for back in plan.swap_ins:
        for slot in back.consumers[:1]:
            yield Line(f"Find a control dependency for swapping in {slot.op} (level {levels[slot.op]})")
        firsts = waits.pop(back.name, [])
        if not firsts:
            yield Line(f"No control dependency op found for the swap-in {back.name}.")
        yield from (_control_edge(levels, first, back.name) for first in firsts)
    yield from (_control_edge(levels, first, then) for then, firsts in waits.items() for first in firsts)


def _control_edge(levels: Levels, first: str, then: str) -> Line:
    return Line(f"Control dependency: {first} (level {levels[first]}) => {then} (level {levels[then]})")


def _shape(graph: Graph, use: Use) -> str:
    shape = graph.output(use).shape
    return "<unknown>" if shape is None else str(shape)
