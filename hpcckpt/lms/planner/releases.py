"""Where an allocator keeps what is freed: ops that give the memory of tensors back after their last user. Pure.

With oneDNN, TensorFlow's allocator on the CPU is a pool: what a step frees stays resident, and what comes back from a
tier would be resident beside it. So each large tensor gets an op that runs after its last user and before the next
step of the order, and gives the pages back to the kernel; the pool fills them again when it uses them again.

A tensor that its last user writes over has none: its memory is that of another tensor, which has one. What swap-ins
make is not from that pool, but a swap-in that comes early returns the tensor that was about to leave.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import replace

from hpcckpt.lms.graph.graph import Op
from hpcckpt.lms.graph.graph_context import GraphContext
from hpcckpt.lms.graph.liveness import Buffer, Liveness
from hpcckpt.lms.planner.edited_graph import edited
from hpcckpt.lms.planner.node_names import Names
from hpcckpt.lms.planner.plan import Plan, Release

POOLED = 256 << 10
"""TensorFlow takes what is smaller from malloc, with oneDNN too."""


def with_releases(
    context: GraphContext, plan: Plan, after: Liveness, steps: Sequence[str], loose: frozenset[str]
) -> Plan:
    """Return a plan that also gives memory back.

    Parameters
    ----------
    context : GraphContext
        The graph without the plan.
    plan : Plan
        With the order of its steps.
    after : Liveness
        Of the graph with the plan.
    steps : sequence of str
        The ops that the plan keeps in this order.
    loose : frozenset of str
        Ops that no edge of a plan may touch.
    """
    ops = edited(context.graph, plan).ops
    makes = Names(ops)
    room = _Room(plan, after, steps)
    releases, edges = [], dict.fromkeys(plan.edges)
    for buffer in after.buffers:
        users = [after.order[use] for use in buffer.uses]
        if not _is_released(buffer, ops, context.min_bytes) or not loose.isdisjoint(users):
            continue
        made = Release(makes.release(buffer.root), buffer.root)
        releases.append(made)
        edges |= dict.fromkeys((user, made.name) for user in users if user != buffer.root.op)
        edges |= dict.fromkeys((made.name, then) for then in room.users_after(buffer.uses[-1], users))
    return replace(plan, releases=tuple(releases), edges=tuple(edges))


def without_releases(plan: Plan) -> Plan:
    """Return a plan that leaves freed memory to the allocator, and moves and orders the same."""
    names = {each.name for each in plan.releases}
    return replace(plan, releases=(), edges=tuple(edge for edge in plan.edges if names.isdisjoint(edge)))


def _is_released(buffer: Buffer, ops: Mapping[str, Op], min_bytes: int) -> bool:
    source = ops[buffer.root.op]
    is_large = buffer.nbytes >= max(min_bytes, POOLED)
    is_taken_over = buffer.last < buffer.uses[-1]
    return is_large and not is_taken_over and not buffer.is_held and bool(source.inputs)


class _Room:
    """Who counts on memory that is free from a place of the order on."""

    def __init__(self, plan: Plan, after: Liveness, steps: Sequence[str]) -> None:
        self._steps, self._swap_outs = steps, {out.name for out in plan.swap_outs}
        self._place = {name: number for number, name in enumerate(after.order)}
        self._places = [self._place[name] for name in steps]
        self._thens: dict[str, list[str]] = {}
        for first, then in plan.edges:
            self._thens.setdefault(first, []).append(then)

    def users_after(self, last: int, users: Sequence[str]) -> list[str]:
        """Return the next step, and what else waits for the step before it or for a swap-out among the users."""
        number = bisect_right(self._places, last)
        found = list(self._steps[number : number + 1])
        firsts = [*self._steps[max(number - 1, 0) : number], *(name for name in users if name in self._swap_outs)]
        found += (then for first in firsts for then in self._thens.get(first, ()))
        return [name for name in dict.fromkeys(found) if self._place[name] > last]
