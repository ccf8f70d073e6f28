"""From a choice to a plan: nodes, who takes from them, and the control edges that make the execution follow. Pure.

Edges: each step waits for the one before; a swap-in for the step after which it may begin; a step, or a swap-in, for
the swap-outs that it needs the room of. All of them agree with the order of the steps, so there is no cycle.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise

from hpcckpt.lms.graph.graph import Graph, InputSlot, Use
from hpcckpt.lms.planner.node_names import Names
from hpcckpt.lms.planner.plan import Copy, Plan, SwapIn, SwapOut
from hpcckpt.lms.planner.swap_candidates import SwapProblem
from hpcckpt.lms.planner.swap_timeline import Choice, Timeline


def emit(problem: SwapProblem, choice: Choice, run: Timeline) -> Plan:
    """Return the plan of a choice."""
    return _Emission(problem, choice, run).plan()


@dataclass
class _Copied:
    """A copy that is being made: its name, its inputs, and what takes its outputs."""

    name: str
    op: str
    inputs: tuple[Use, ...]
    consumers: list[tuple[int, InputSlot]] = field(default_factory=list)


class _Emission:
    def __init__(self, problem: SwapProblem, choice: Choice, run: Timeline) -> None:
        self.problem, self.choice, self.run = problem, choice, run
        self.graph: Graph = problem.context.graph
        self.root = problem.context.aliases.root
        self.names = Names(self.graph.ops)
        self.numbers = {item.root: number for number, item in enumerate(problem.items)}
        self.place = {name: place for place, name in enumerate(problem.live.order)}
        self.places = [self.place[name] for name in problem.steps]
        self.epochs: dict[int, list[int]] = {}
        for number in sorted(run.absences.ends):
            self.epochs.setdefault(problem.gaps[number].item, []).append(number)
        self.outs: dict[int, SwapOut] = {}
        self.backs: dict[int, tuple[str, list[InputSlot]]] = {}
        self.copies: dict[tuple[int, str], _Copied] = {}
        self.before: dict[int, list[str]] = {}
        """Copies that run before each step, in order."""

    def plan(self) -> Plan:
        for number in sorted(self.run.absences.ends):
            self._make(number)
        for item in sorted(self.epochs):
            self._reroute(item)
        swap_ins = (
            SwapIn(name, self.outs[self.problem.gaps[number].item].name, tuple(sorted(slots)))
            for number, (name, slots) in sorted(self.backs.items())
        )
        copies = (Copy(each.name, each.op, each.inputs, tuple(sorted(each.consumers))) for each in self.copies.values())
        outs = (out for _, out in sorted(self.outs.items()))
        return Plan(tuple(outs), tuple(swap_ins), tuple(copies), tuple(self._edges()), planner="cost")

    # -- nodes

    def _make(self, number: int) -> None:
        """Make what ends a gap. Sources have lower numbers, so what they come back from is there."""
        gap = self.problem.gaps[number]
        item = self.problem.items[gap.item]
        if self.choice[number] == "swap":
            if gap.item not in self.outs:
                self.outs[gap.item] = SwapOut(self.names.swap_out(item.root), item.root, item.nbytes)
            self.backs[number] = (self.names.swap_in(item.root), [])
            return
        if gap.recomputation is None:
            return
        end = self.run.absences.ends[number]
        for name in gap.recomputation.ops:
            self._copy(number, name, end, set(gap.recomputation.ops))

    def _copy(self, number: int, name: str, step: int, recomputation: set[str]) -> str:
        """Copy a recomputed op, or an alias op, for consumers after a gap; once."""
        key = (number, name)
        if key not in self.copies:
            op = self.graph.ops[name]
            new = self.names.copy(name)
            inputs = tuple(
                Use(self.copies[number, use.op].name, use.number) if use.op in recomputation else self._at(use, step)
                for use in op.inputs
            )
            self.copies[key] = _Copied(new, name, inputs)
            self.before.setdefault(step, []).append(new)
        return self.copies[key].name

    def _at(self, use: Use, step: int) -> Use:
        """Return what is to be taken for a tensor at a step: it, or what it came back as."""
        item = self.numbers.get(self.root(use))
        number = None if item is None else self._epoch(item, step)
        if number is None or self._is_remade_later(use, number):
            return use
        return self._returned(use, number)

    def _is_remade_later(self, use: Use, number: int) -> bool:
        """Return True if an alias runs after a gap, and so consumes the swapped-in tensor itself."""
        is_root = self.root(use) == use
        return not is_root and self._step(use.op) >= self.run.absences.ends[number]

    def _returned(self, use: Use, number: int) -> Use:
        """Return a tensor as it is after a gap."""
        if self.root(use) == use:
            if self.choice[number] == "swap":
                return Use(self.backs[number][0], 0)
            return Use(self.copies[number, use.op].name, use.number)
        key = (number, use.op)
        if key not in self.copies:
            op = self.graph.ops[use.op]
            inner = op.inputs[use.number if op.type == "IdentityN" else 0]
            source = inner if self._is_remade_later(inner, number) else self._returned(inner, number)
            name = self.names.copy(use.op)
            self.copies[key] = _Copied(name, use.op, tuple(source if each == inner else each for each in op.inputs))
        return Use(self.copies[key].name, use.number)

    # -- who takes from them

    def _reroute(self, item: int) -> None:
        for use in self._members(item):
            for slot in self.graph.consumers.get(use, ()):
                number = self._epoch(item, self._step(slot.op))
                if number is None or self._is_remade_later(use, number):
                    continue
                back = self._returned(use, number)
                if number in self.backs and back.op == self.backs[number][0]:
                    self.backs[number][1].append(slot)
                else:
                    self._copied(back.op).consumers.append((back.number, slot))

    def _copied(self, name: str) -> _Copied:
        return next(each for each in self.copies.values() if each.name == name)

    def _members(self, item: int) -> Iterable[Use]:
        """Return the tensors that share an item's memory, itself first."""
        found = [self.problem.items[item].root]
        for use in found:
            for slot in self.graph.consumers.get(use, ()):
                op = self.graph.ops[slot.op]
                new = (Use(op.name, number) for number in range(len(op.outputs)))
                found += [each for each in new if each not in found and self.root(each) == found[0]]
        return found

    def _epoch(self, item: int, step: int) -> int | None:
        """Return the last chosen gap of an item that ends at a step or before it."""
        over = [number for number in self.epochs.get(item, ()) if self.run.absences.ends[number] <= step]
        return over[-1] if over else None

    def _step(self, name: str) -> int:
        return min(bisect_left(self.places, self.place[name]), len(self.places) - 1)

    # -- edges

    def _edges(self) -> list[tuple[str, str]]:
        steps = self.problem.steps
        heads = [self.before.get(step, [name])[0] for step, name in enumerate(steps)]
        edges: dict[tuple[str, str], None] = {}
        for step, name in enumerate(steps):
            chain = [*([steps[step - 1]] if step else []), *self.before.get(step, ()), name]
            edges |= dict.fromkeys(pairwise(chain))
        for number, begin in sorted(self.run.begins.items()):
            edges[steps[begin - 1], self.backs[number][0]] = None
        for item, step in self.run.step_waits:
            edges[self.outs[item].name, heads[step]] = None
        for item, number in self.run.read_waits:
            edges[self.outs[item].name, self.backs[number][0]] = None
        return [edge for edge in edges if not self._is_implied(*edge)]

    def _is_implied(self, first: str, then: str) -> bool:
        op = self.graph.ops.get(then)
        return op is not None and first in op.controls
