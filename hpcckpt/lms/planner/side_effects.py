"""Control edges of a plan that bring no side effect into a session's fetches. Pure.

A session runs what its fetches need.  A control edge ``(first, then)`` makes every fetch that needs `then` run `first`,
and all that `first` needs.  The order of a training step has such edges between any ops, also between ops of different
fetches: gradients that are accumulated and applied by two fetches, two optimizers, a forward pass and the step.

1. The effects of an op are the ops before it that write, draw random numbers, read data, or must be fed.
2. An edge stays if `first` has no other effects than `then`; for an op of LMS, than all that consume it.
3. Otherwise `then` waits for what `first` was to wait for, by the same rule.
4. A release that would not wait for all users of its tensor is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property

from hpcckpt.lms.graph.filters import VARIABLES, is_in_variable
from hpcckpt.lms.graph.graph import Graph, Op
from hpcckpt.lms.planner.plan import Plan

_WITHOUT_EFFECT = VARIABLES | {
    "ReadVariableOp", "_ReadVariablesOp", "VarIsInitializedOp", "VariableShape", "ResourceGather",
}  # fmt: skip
_ALL = -1
"""The effects of what nothing needs: it is not run."""


def without_side_effects(plan: Plan, graph: Graph) -> Plan:
    """Return a plan whose control edges change no fetch's effects. Pure."""
    return _Effects(plan, graph).plan()


def has_effect(op: Op) -> bool:
    """Return True if running an op where it is not wanted changes values, or fails. Pure."""
    if op.type in _WITHOUT_EFFECT or op.type == "PlaceholderWithDefault":
        return False
    return op.is_stateful or is_in_variable(op) or op.type.startswith("Placeholder")


class _Effects:
    def __init__(self, plan: Plan, graph: Graph) -> None:
        self._plan, self._graph = plan, graph
        self._releases = {each.name for each in plan.releases}
        self._waits: dict[str, list[str]] = {}
        for first, then in plan.edges:
            self._waits.setdefault(then, []).append(first)

    def plan(self) -> Plan:
        kept = {then: list(self._allowed(then)) for then in self._waits}
        dropped = {name for name in self._releases if not set(self._waits.get(name, ())) <= set(kept.get(name, ()))}
        edges = tuple((first, then) for then, firsts in kept.items() for first in firsts if not {first, then} & dropped)
        releases = tuple(each for each in self._plan.releases if each.name not in dropped)
        return replace(self._plan, edges=edges, releases=releases)

    def _allowed(self, then: str) -> Iterator[str]:
        todo, seen = list(reversed(self._waits[then])), set()
        while todo:
            first = todo.pop()
            if first in seen:
                continue
            seen.add(first)
            if self._effects(first) & ~self._effects(then) == 0:
                yield first
            else:
                todo += self._waits.get(first, ())

    def _effects(self, name: str) -> int:
        """Return the effects of an op, as bits; of an op of LMS, those that all ops have which need it."""
        return self._of_ops[name] if name in self._of_ops else self._of_new[name]

    @cached_property
    def _of_ops(self) -> Mapping[str, int]:
        found: dict[str, int] = {}
        n_effects = 0
        for name in _in_order(self._graph):
            op = self._graph.ops[name]
            bits = 0
            for before in _before(self._graph, op):
                bits |= found.get(before, 0)
            if has_effect(op):
                bits |= 1 << n_effects
                n_effects += 1
            found[name] = bits
        return found

    @cached_property
    def _of_new(self) -> Mapping[str, int]:
        found = {out.name: self._of_ops[out.tensor.op] for out in self._plan.swap_outs}
        consumers = {back.name: [slot.op for slot in back.consumers] for back in self._plan.swap_ins}
        consumers |= {copy.name: [slot.op for _, slot in copy.consumers] for copy in self._plan.copies}
        for copy in self._plan.copies:  # what a copy takes may be a copy, too, or come back
            for use in copy.inputs:
                if use.op in consumers:
                    consumers[use.op].append(copy.name)
        for name in self._releases:
            consumers[name] = [then for first, then in self._plan.edges if first == name]
        for name in consumers:
            self._need(name, consumers, found)
        return found

    def _need(self, name: str, consumers: Mapping[str, list[str]], found: dict[str, int]) -> int:
        if name in self._of_ops:
            return self._of_ops[name]
        if name not in found:
            found[name] = _ALL
            bits = _ALL
            for each in consumers.get(name, ()):
                bits &= self._need(each, consumers, found)
            found[name] = bits
        return found[name]


def _before(graph: Graph, op: Op) -> Iterator[str]:
    """Yield what an op waits for; the way back of a loop is none of it."""
    for use in op.inputs:
        if graph.ops[use.op].type != "NextIteration":
            yield use.op
    yield from op.controls


def _in_order(graph: Graph) -> Iterator[str]:
    """Yield ops so that each comes after what it waits for."""
    done: set[str] = set()
    for start in graph.ops:
        todo = [start]
        while todo:
            name = todo[-1]
            open_ = [each for each in _before(graph, graph.ops[name]) if each not in done] if name not in done else []
            if open_:
                todo += open_
                continue
            todo.pop()
            if name not in done:
                done.add(name)
                yield name
