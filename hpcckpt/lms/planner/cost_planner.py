"""The cost planner: the least exposed time of swapping and recomputing within a memory budget. Pure.

1. Order the ops so that memory is small without any swap; the order becomes control edges between the ops that touch
   large tensors (`hpcckpt.lms.planner.op_schedule`).
2. Compute what is in memory at each step (`liveness`), and when each buffer could be absent (`swap_candidates`,
   `recompute`).
3. Search for what to swap and what to recompute (`budget_search`), using the times of ops and tier (`swap_timeline`).
4. Write the plan as nodes and edges (`build_plan`), apply it to the graph, and check it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hpcckpt.errors import MemoryBudgetError, StateError
from hpcckpt.lms.graph.graph_context import GraphContext
from hpcckpt.lms.graph.liveness import Liveness, liveness
from hpcckpt.lms.graph.op_times import Rates
from hpcckpt.lms.planner.budget_search import Point, Search
from hpcckpt.lms.planner.build_plan import emit
from hpcckpt.lms.planner.edited_graph import edited
from hpcckpt.lms.planner.memory_limits import refused
from hpcckpt.lms.planner.op_schedule import Waits, orders, refined
from hpcckpt.lms.planner.plan import Plan
from hpcckpt.lms.planner.releases import with_releases, without_releases
from hpcckpt.lms.planner.swap_candidates import SwapProblem, loose_ops, problem
from hpcckpt.lms.planner.swap_timeline import TierBandwidth

MIN_BYTES = 256 << 10
AMPLE = 1.5
"""With this factor above the simulated peak, ops may run in any order."""


def plan_by_cost(
    context: GraphContext,
    memory_budget: int | None,
    bandwidth: TierBandwidth,
    *,
    rates: Rates | None = None,
    recompute: bool = True,
    order: Sequence[str] | None = None,
    slowdown: float = 1.35,
    release: bool = False,
) -> Plan:
    """Plan what is swapped, what is recomputed and in which order ops run, so that a budget is met.

    Parameters
    ----------
    context : GraphContext
        The graph and its filters; tensors below its `min_bytes`, or 256 KiB, are not swapped.
    memory_budget : int or None
        Bytes that the step's tensors may use at any time; `None`: the least with at most `slowdown` times the time.
    bandwidth : TierBandwidth
        Of the tier.
    rates : Rates, optional
        To estimate the times of ops that were not measured.
    recompute : bool
        Whether cheap ops may run again instead of having their outputs swapped.
    order : sequence of str, optional
        The measured order of the ops; otherwise computed orders are tried.
    slowdown : float
        The bound on time where there is no budget.
    release : bool
        Whether TensorFlow's allocator keeps freed memory, so that ops must return it to the kernel.

    Returns
    -------
    Plan
        Without nodes if ordering the ops meets the budget, without edges too if the budget
        is ample. The same for the same arguments, in any process.

    Raises
    ------
    MemoryBudgetError
        The budget cannot be met; the error has the nearest one that can.
    """
    least, rates = context.min_bytes or MIN_BYTES, rates or Rates()
    candidates = [refined(context, order, least)] if order else [*orders(context, least)]
    problems = [problem(context, each, least, rates, recompute=recompute) for each in candidates]
    best = min(problems, key=lambda each: (Search(each, bandwidth).floor, each.peak))
    search = Search(best, bandwidth)
    if memory_budget is not None and memory_budget < search.floor:
        raise refused(memory_budget, search.floor, len(context.loops))
    point, curve = _chosen(search, memory_budget, slowdown)
    is_idle = not point.choice and (memory_budget or 0) >= AMPLE * best.peak
    plan = Plan(planner="cost") if is_idle else emit(best, point.choice, point.timeline)
    after = best.live if is_idle else simulated(context, plan, best.live.order)
    if memory_budget is not None and after.peak > memory_budget:
        raise StateError(f"the cost planner missed its budget: {after.peak} bytes for {memory_budget}; report it")
    if release and not is_idle:
        plan = with_releases(context, plan, after, best.steps, loose_ops(context))
    return replace(plan, parameters=_figures(best, point, curve, after))


def simulated(context: GraphContext, plan: Plan, order: Sequence[str] | None = None) -> Liveness:
    """Return memory over time with a plan applied, in the worst case that its edges leave open.

    Swap-ins take memory as soon as they may begin; tensors on their way out are there until something waits for them.

    Parameters
    ----------
    context : GraphContext
        The graph without the plan.
    plan : Plan
        The plan.
    order : sequence of str, optional
        The order of the graph's ops that the plan keeps; found from its edges if it is not given.
    """
    plan = without_releases(plan)
    graph = edited(context.graph, plan)
    if order is None:
        planned = next(orders(replace(context, graph=graph), context.min_bytes or MIN_BYTES))
        order = [name for name in planned if name in context.graph.ops]
    waits, backs = Waits(graph), {swap.name for swap in plan.swap_ins}
    trigger = {then: first for first, then in plan.edges if then in backs and first in context.graph.ops}
    triggered: dict[str, list[str]] = {}
    for back, first in trigger.items():
        triggered.setdefault(first, []).append(back)
    found: dict[str, None] = {}
    for name in order:
        _visit(name, waits, found)
        for back in triggered.get(name, ()):
            _visit(back, waits, found)
    for out in plan.swap_outs:
        _visit(out.name, waits, found)
    return liveness(graph, tuple(found), batch_size=context.batch_size)


def _visit(name: str, waits: Waits, found: dict[str, None]) -> None:
    if name not in found:
        for first in waits.firsts[name]:
            _visit(first, waits, found)
        found[name] = None


def _chosen(search: Search, budget: int | None, slowdown: float) -> tuple[Point, list[Point]]:
    """Return the last point within the budget, or the first within the bound on time, and those before it."""
    points: list[Point] = []
    bound = slowdown * search.least_ns
    for point in search.points(budget):
        points.append(point)
        if budget is None and point.timeline.total_ns <= bound:
            break
    return points[-1], points


def _figures(best: SwapProblem, point: Point, curve: list[Point], after: Liveness) -> dict[str, Any]:
    ways = list(point.choice.values())
    return {
        "budget": point.budget,
        "floor": curve[0].budget,
        "peak_before": best.live.peak,
        "peak_after": after.peak,
        "time_before_ns": sum(best.times),
        "time_after_ns": point.timeline.total_ns,
        "n_steps": len(best.steps),
        "n_swapped": ways.count("swap"),
        "n_recomputed": ways.count("recompute"),
        "curve": [[each.budget, each.timeline.total_ns] for each in curve],
    }


__all__ = ["MemoryBudgetError", "Rates", "TierBandwidth", "plan_by_cost", "simulated"]
