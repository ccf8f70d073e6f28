"""The cost planner: the least time that swapping and computing again expose, within a memory budget. Pure.

1. Order the ops so that memory is small without any swap; the order becomes control edges between the ops that touch
   large tensors (`hpcckpt.lms.schedule`).
2. See what is in memory at each step of it (`liveness`), and when each buffer could be absent (`moves`, `recipes`).
3. Search for what to swap and what to compute again (`frontier`), by a clock that knows the ops and the tier
   (`timeline`).
4. Write it down as nodes and edges (`emission`), apply it to the graph, and see that it holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hpcckpt.errors import MemoryBudgetError, StateError
from hpcckpt.lms.edited import edited
from hpcckpt.lms.emission import emit
from hpcckpt.lms.frontier import Point, Search
from hpcckpt.lms.liveness import Liveness, liveness
from hpcckpt.lms.moves import Problem, loose_ops, problem
from hpcckpt.lms.op_times import Rates
from hpcckpt.lms.overhead import refused
from hpcckpt.lms.plan import Plan
from hpcckpt.lms.releases import with_releases, without_releases
from hpcckpt.lms.scene import Scene
from hpcckpt.lms.schedule import Waits, orders, refined
from hpcckpt.lms.timeline import Bandwidth

MIN_BYTES = 256 << 10
AMPLE = 1.5
"""With so much more than the simulated peak, ops may run in any order."""


def plan_by_cost(
    scene: Scene,
    memory_budget: int | None,
    bandwidth: Bandwidth,
    *,
    rates: Rates | None = None,
    recompute: bool = True,
    order: Sequence[str] | None = None,
    slowdown: float = 1.35,
    release: bool = False,
) -> Plan:
    """Plan what leaves memory, what is computed again and in which order ops run, so that a budget is met.

    Parameters
    ----------
    scene : Scene
        The graph, and what is to be left alone; its `min_bytes`, or 256 KiB, is what a tensor has to have to be moved.
    memory_budget : int or None
        Bytes that the step's tensors may take at any time; `None`: as few as take at most `slowdown` times as long.
    bandwidth : Bandwidth
        What the tier writes and reads.
    rates : Rates, optional
        For the times of ops that nobody measured.
    recompute : bool
        Whether cheap ops may run again instead of having their outputs swapped.
    order : sequence of str, optional
        In which order the ops were seen to run; orders of our own are tried otherwise.
    slowdown : float
        The bound on time where there is no budget.
    release : bool
        Whether TensorFlow's allocator keeps what is freed, so that ops have to give it back to the kernel.

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
    least, rates = scene.min_bytes or MIN_BYTES, rates or Rates()
    candidates = [refined(scene, order, least)] if order else [*orders(scene, least)]
    problems = [problem(scene, each, least, rates, recompute=recompute) for each in candidates]
    best = min(problems, key=lambda each: (Search(each, bandwidth).floor, each.peak))
    search = Search(best, bandwidth)
    if memory_budget is not None and memory_budget < search.floor:
        raise refused(memory_budget, search.floor, len(scene.loops))
    point, curve = _chosen(search, memory_budget, slowdown)
    is_idle = not point.choice and (memory_budget or 0) >= AMPLE * best.peak
    plan = Plan(planner="cost") if is_idle else emit(best, point.choice, point.timeline)
    after = best.live if is_idle else simulated(scene, plan, best.live.order)
    if memory_budget is not None and after.peak > memory_budget:
        raise StateError(f"the cost planner missed its budget: {after.peak} bytes for {memory_budget}; report it")
    if release and not is_idle:
        plan = with_releases(scene, plan, after, best.steps, loose_ops(scene))
    return replace(plan, parameters=_figures(best, point, curve, after))


def simulated(scene: Scene, plan: Plan, order: Sequence[str] | None = None) -> Liveness:
    """Return memory over time with a plan applied, in the worst case that its edges leave open.

    Swap-ins take memory as soon as they may begin; tensors on their way out are there until something waits for them.

    Parameters
    ----------
    scene : Scene
        The graph without the plan.
    plan : Plan
        The plan.
    order : sequence of str, optional
        The order of the graph's ops that the plan keeps; found from its edges if it is not given.
    """
    plan = without_releases(plan)
    graph = edited(scene.graph, plan)
    if order is None:
        planned = next(orders(replace(scene, graph=graph), scene.min_bytes or MIN_BYTES))
        order = [name for name in planned if name in scene.graph.ops]
    waits, backs = Waits(graph), {swap.name for swap in plan.swap_ins}
    trigger = {then: first for first, then in plan.edges if then in backs and first in scene.graph.ops}
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
    return liveness(graph, tuple(found), batch_size=scene.batch_size)


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


def _figures(best: Problem, point: Point, curve: list[Point], after: Liveness) -> dict[str, Any]:
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


__all__ = ["Bandwidth", "MemoryBudgetError", "Rates", "plan_by_cost", "simulated"]
