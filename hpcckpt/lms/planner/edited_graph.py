"""The graph after a plan is applied to it, by any of the appliers. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from hpcckpt.errors import StateError
from hpcckpt.lms.graph.graph import Graph, InputSlot, Op, Output, Use
from hpcckpt.lms.graph.levels import awaited
from hpcckpt.lms.planner.plan import Plan

SWAP_OUT, SWAP_IN, RELEASE = "HpcckptSwapOut", "HpcckptSwapIn", "HpcckptRelease"
_HANDLE = Output("variant", ())


def edited(graph: Graph, plan: Plan) -> Graph:
    """Return the graph with the plan's nodes in it, its consumers rerouted, its control edges drawn."""
    moved = _moved(plan)
    ops = {name: _rerouted(op, moved) for name, op in graph.ops.items()}
    for out in plan.swap_outs:
        device = graph.ops[out.tensor.op].device
        ops[out.name] = Op(out.name, SWAP_OUT, device, (out.tensor,), outputs=(_HANDLE,))
    tensors = {out.name: graph.output(out.tensor) for out in plan.swap_outs}
    for back in plan.swap_ins:
        device = ops[back.swap_out].device
        ops[back.name] = Op(back.name, SWAP_IN, device, (Use(back.swap_out, 0),), outputs=(tensors[back.swap_out],))
    for copy in plan.copies:
        ops[copy.name] = replace(graph.ops[copy.op], name=copy.name, inputs=copy.inputs, controls=())
    for each in plan.releases:
        ops[each.name] = Op(each.name, RELEASE, ops[each.tensor.op].device, (each.tensor,))
    return Graph.of(_waiting(ops, plan))


def find_cycle(graph: Graph) -> tuple[str, ...]:
    """Return ops that wait for each other, sorted; nothing if there are none.

    The back edge of a while loop is no cycle; see `hpcckpt.lms.graph.levels.awaited`.
    """
    waits = awaited(graph)
    after: dict[str, list[str]] = {}
    for name, firsts in waits.items():
        for first in firsts:
            after.setdefault(first, []).append(name)
    left = {name: len(firsts) for name, firsts in waits.items()}
    ready = deque(name for name, count in left.items() if not count)
    while ready:
        name = ready.popleft()
        del left[name]
        for then in after.get(name, ()):
            left[then] -= 1
            if not left[then]:
                ready.append(then)
    return tuple(sorted(left))


def check(graph: Graph, plan: Plan) -> None:
    """Check that a plan matches a graph and leaves it without cycles.

    Raises
    ------
    StateError
        If it does not: a plan of another graph, or a mistake of the planner.
    """
    new = plan.names
    named = {out.tensor.op for out in plan.swap_outs} | {copy.op for copy in plan.copies}
    named |= {each.tensor.op for each in plan.releases}
    named |= {slot.op for slot in _moved(plan)} | {name for edge in plan.edges for name in edge}
    missing = sorted(named - new - graph.ops.keys())
    if missing:
        raise StateError(f"the plan names {missing[0]!r}, which this graph has not: it was made for another graph")
    cycle = find_cycle(edited(graph, plan))
    if cycle:
        raise StateError(
            f"the plan would make {len(cycle)} ops wait for each other, {', '.join(cycle[:5])} among them; leave one "
            "of them out with excl_output_by_scopes, and report it"
        )


def _moved(plan: Plan) -> dict[InputSlot, Use]:
    """Return what each rerouted input reads in future."""
    moved = {slot: Use(back.name, 0) for back in plan.swap_ins for slot in back.consumers}
    return moved | {slot: Use(copy.name, number) for copy in plan.copies for number, slot in copy.consumers}


def _rerouted(op: Op, moved: dict[InputSlot, Use]) -> Op:
    inputs = tuple(moved.get(InputSlot(op.name, number), use) for number, use in enumerate(op.inputs))
    return op if inputs == op.inputs else replace(op, inputs=inputs)


def _waiting(ops: dict[str, Op], plan: Plan) -> list[Op]:
    waits: dict[str, set[str]] = {}
    for first, then in plan.edges:
        waits.setdefault(then, set()).add(first)
    return [
        replace(op, controls=tuple(sorted({*op.controls, *waits[name]}))) if name in waits else op
        for name, op in ops.items()
    ]


def unedited(graph: Graph, plan: Plan) -> Graph:
    """Return what the graph was before the plan was applied: the inverse of `edited`."""
    before = _before(plan)
    new = plan.names
    drawn = set(plan.edges)
    return Graph.of(
        replace(
            op,
            inputs=tuple(before.get(InputSlot(op.name, number), use) for number, use in enumerate(op.inputs)),
            controls=tuple(first for first in op.controls if (first, op.name) not in drawn),
        )
        for op in graph.ops.values()
        if op.name not in new
    )


def _before(plan: Plan) -> dict[InputSlot, Use]:
    """Return what each rerouted input read before."""
    tensors = {out.name: out.tensor for out in plan.swap_outs}
    before: dict[InputSlot, Use] = {}
    for back in plan.swap_ins:
        took = back.took or (tensors[back.swap_out],) * len(back.consumers)
        before |= dict(zip(back.consumers, took, strict=True))
    return before | {slot: Use(copy.op, number) for copy in plan.copies for number, slot in copy.consumers}
