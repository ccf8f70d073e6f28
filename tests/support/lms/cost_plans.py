"""Plans by cost, with the times of one machine."""

from __future__ import annotations

from hpcckpt.lms.graph.graph_context import GraphContext
from hpcckpt.lms.graph.op_times import Rates
from hpcckpt.lms.planner.cost_planner import plan_by_cost
from hpcckpt.lms.planner.op_schedule import orders
from hpcckpt.lms.planner.swap_candidates import problem
from hpcckpt.lms.planner.swap_timeline import TierBandwidth
from tests.support.lms.steps import MIB

DISK = TierBandwidth(write=1.2e9, read=0.8e9)
SLOW = Rates(flops=1e9, nbytes=1e9)


def plan(g, budget, rates=SLOW, bandwidth=DISK, **more):
    return plan_by_cost(GraphContext(g), budget, bandwidth, rates=rates, **more)


def steps(g, rates=SLOW, **more):
    context = GraphContext(g)
    return problem(context, next(orders(context, MIB // 8)), MIB // 8, rates, **more)
