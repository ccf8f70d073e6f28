"""The planner that is compatible with TFLMSv2: tensors are swapped if they are needed again many levels later. Pure.

1. The graph's levels; those to be serialized are chained, and the levels computed again.
2. Candidates: tensors with consumers beyond the threshold; consumers near each other share a swap-in.
3. Triggers: each swap-in waits for an op that is `swapin_ahead` levels before its first consumer (modes 0 and 1).
4. Synchronous modes: compute waits for swap-outs (1, 3), swap-ins wait for compute (2, 3).
5. With a window, the next swapped tensor is not computed before the previous one is swapped out.

The same graph and parameters give the same plan, on every rank: all candidates are sorted first.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from functools import cached_property

from hpcckpt.lms.graph.graph import Graph
from hpcckpt.lms.graph.graph_context import GraphContext
from hpcckpt.lms.graph.levels import Levels, sort
from hpcckpt.lms.planner.distance_candidates import Reach, SwapCandidate, reaches, swaps
from hpcckpt.lms.planner.edited_graph import edited
from hpcckpt.lms.planner.node_names import Names
from hpcckpt.lms.planner.plan import Plan, SwapIn, SwapOut
from hpcckpt.lms.planner.serialization import chosen_levels, serializing_edges
from hpcckpt.lms.planner.swapin_triggers import Edges, Return, bound, lead, synchronize_in, synchronize_out
from hpcckpt.lms.settings import Parameters


@dataclass(frozen=True)
class LevelLayout:
    """A graph with its levels serialized as requested: shared by plans with different thresholds."""

    context: GraphContext
    serialized: tuple[int, ...] = ()
    edges: tuple[tuple[str, str], ...] = ()

    @cached_property
    def graph(self) -> Graph:
        """The graph with the chains in it."""
        return edited(self.context.graph, Plan(edges=self.edges)) if self.edges else self.context.graph

    @cached_property
    def levels(self) -> Levels:
        """The levels of the graph with the chains in it."""
        return sort(self.graph) if self.edges else self.context.levels

    @cached_property
    def reaches(self) -> tuple[Reach, ...]:
        """All tensors that may be swapped."""
        return reaches(self.context, self.levels)


def serialize_levels(context: GraphContext, serialization: Iterable[int | str] = (), by_size: float = 0) -> LevelLayout:
    """Serialize the levels that are named, and those that need more than `by_size` GiB."""
    serialized = chosen_levels(context, serialization, by_size)
    return LevelLayout(context, serialized, serializing_edges(context, serialized))


def plan_by_distance(context: GraphContext, parameters: Parameters) -> Plan:
    """Plan what is swapped, when it comes back, and what waits for what.

    Raises
    ------
    OptionError
        A filter matches nothing, serialization names no levels, or the graph has a cycle.
    """
    context.check_filters()
    level_layout = serialize_levels(context, parameters.serialization, parameters.serialization_by_size)
    return plan_on(level_layout, parameters)


def plan_on(level_layout: LevelLayout, parameters: Parameters) -> Plan:
    """Plan on levels that are already computed."""
    groupby = 0 if parameters.is_in_synchronous else parameters.swapin_groupby
    chosen = tuple(swaps(level_layout.reaches, parameters.swapout_threshold, groupby))
    plan, returns = _moves(level_layout, chosen)
    edges = Edges(level_layout.context, level_layout.levels, edited(level_layout.graph, plan), returns)
    if not parameters.is_in_synchronous:
        lead(edges, returns, parameters.swapin_ahead)
    if chosen and parameters.is_out_synchronous:
        synchronize_out(edges)
    if chosen and parameters.is_in_synchronous:
        synchronize_in(edges)
    if parameters.window is not None:
        bound(edges, plan.swap_outs, parameters.window)
    return replace(plan, edges=(*level_layout.edges, *edges.added), parameters=asdict(parameters))


def _moves(level_layout: LevelLayout, chosen: Iterable[SwapCandidate]) -> tuple[Plan, list[Return]]:
    names = Names(level_layout.graph.ops)
    outs: list[SwapOut] = []
    ins: list[SwapIn] = []
    returns: list[Return] = []
    for swap in chosen:
        out = SwapOut(names.swap_out(swap.tensor), swap.tensor, level_layout.context.nbytes(swap.tensor))
        outs.append(out)
        for group in swap.groups:
            took = tuple(level_layout.graph.ops[slot.op].inputs[slot.number] for slot in group)
            was = () if set(took) == {swap.tensor} else took
            back = SwapIn(names.swap_in(swap.tensor), out.name, group, was)
            ins.append(back)
            returns.append(Return(back.name, swap.tensor.op, group[0].op))
    return Plan(tuple(outs), tuple(ins), planner="distance"), returns
