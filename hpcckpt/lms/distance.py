"""The planner that is compatible with TFLMSv2: tensors are swapped if they are needed again many levels later. Pure.

1. The graph's levels; those that are to be serialized are chained, and the levels told anew.
2. Candidates: tensors with consumers beyond the threshold; consumers near each other share a swap-in.
3. Triggers: each swap-in waits for an op that is `swapin_ahead` levels before its first consumer (modes 0 and 1).
4. Synchronous modes: compute waits for swap-outs (1, 3), swap-ins wait for compute (2, 3).
5. With a window, what is swapped next is not computed before what went before it is out.

The same graph and parameters give the same plan, on every rank: whatever there is to choose from is sorted first.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from functools import cached_property

from hpcckpt.lms.candidates import Reach, Swap, reaches, swaps
from hpcckpt.lms.edited import edited
from hpcckpt.lms.graph import Graph, Slot, Use
from hpcckpt.lms.levels import Levels, sort
from hpcckpt.lms.naming import Names
from hpcckpt.lms.parameters import Parameters
from hpcckpt.lms.plan import Plan, SwapIn, SwapOut
from hpcckpt.lms.scene import Scene
from hpcckpt.lms.serialization import chosen_levels, serializing_edges
from hpcckpt.lms.triggers import Edges, Return, bound, lead, synchronize_in, synchronize_out


@dataclass(frozen=True)
class Ground:
    """A graph with its levels serialized as asked: what plans of different thresholds have in common."""

    scene: Scene
    serialized: tuple[int, ...] = ()
    edges: tuple[tuple[str, str], ...] = ()

    @cached_property
    def graph(self) -> Graph:
        """The graph with the chains in it."""
        return edited(self.scene.graph, Plan(edges=self.edges)) if self.edges else self.scene.graph

    @cached_property
    def levels(self) -> Levels:
        """The levels of the graph with the chains in it."""
        return sort(self.graph) if self.edges else self.scene.levels

    @cached_property
    def reaches(self) -> tuple[Reach, ...]:
        """What may be swapped at all."""
        return reaches(self.scene, self.levels)


def lay_out(scene: Scene, serialization: Iterable[int | str] = (), by_size: float = 0) -> Ground:
    """Serialize the levels that are named, and those that need more than `by_size` GiB."""
    serialized = chosen_levels(scene, serialization, by_size)
    return Ground(scene, serialized, serializing_edges(scene, serialized))


def plan_by_distance(scene: Scene, parameters: Parameters) -> Plan:
    """Plan what is swapped, when it comes back, and what waits for what.

    Raises
    ------
    OptionError
        A filter matches nothing, serialization names no levels, or the graph has a cycle.
    """
    scene.check_filters()
    ground = lay_out(scene, parameters.serialization, parameters.serialization_by_size)
    return plan_on(ground, parameters)


def plan_on(ground: Ground, parameters: Parameters) -> Plan:
    """Plan on levels that are told already."""
    groupby = 0 if parameters.is_in_synchronous else parameters.swapin_groupby
    chosen = tuple(swaps(ground.reaches, parameters.swapout_threshold, groupby))
    plan, returns = _moves(ground, chosen)
    edges = Edges(ground.scene, ground.levels, edited(ground.graph, plan), returns)
    if not parameters.is_in_synchronous:
        lead(edges, returns, parameters.swapin_ahead)
    if chosen and parameters.is_out_synchronous:
        synchronize_out(edges)
    if chosen and parameters.is_in_synchronous:
        synchronize_in(edges)
    if parameters.window is not None:
        bound(edges, plan.swap_outs, parameters.window)
    return replace(plan, edges=(*ground.edges, *edges.added), parameters=asdict(parameters))


def _took(graph: Graph, tensor: Use, group: Iterable[Slot]) -> tuple[Use, ...]:
    took = tuple(graph.ops[slot.op].inputs[slot.number] for slot in group)
    return () if set(took) == {tensor} else took


def _moves(ground: Ground, chosen: Iterable[Swap]) -> tuple[Plan, list[Return]]:
    names = Names(ground.graph.ops)
    outs: list[SwapOut] = []
    ins: list[SwapIn] = []
    returns: list[Return] = []
    for swap in chosen:
        out = SwapOut(names.swap_out(swap.tensor), swap.tensor, ground.scene.nbytes(swap.tensor))
        outs.append(out)
        for group in swap.groups:
            back = SwapIn(names.swap_in(swap.tensor), out.name, group, _took(ground.graph, swap.tensor, group))
            ins.append(back)
            returns.append(Return(back.name, swap.tensor.op, group[0].op))
    return Plan(tuple(outs), tuple(ins), planner="distance"), returns
