"""Graphs drawn at random: whatever is planned, it fits, closes no cycle, can be taken away, and is always the same."""

from __future__ import annotations

import subprocess
import sys

from hypothesis import given, strategies as st

from hpcckpt.lms.graph.filters import device_rule, every_op, is_collective
from hpcckpt.lms.graph.graph import Graph
from hpcckpt.lms.graph.graph_context import GraphContext
from hpcckpt.lms.graph.levels import sort
from hpcckpt.lms.planner.distance_planner import plan_by_distance
from hpcckpt.lms.planner.edited_graph import check, edited, find_cycle, unedited
from hpcckpt.lms.planner.plan import Plan
from hpcckpt.lms.settings import Parameters
from tests.support.lms.graphs import random_graphs, tangle
from tests.support.programs import environment

parameters = st.builds(
    Parameters,
    swapout_threshold=st.integers(1, 8),
    swapin_groupby=st.integers(-1, 4),
    swapin_ahead=st.sampled_from([-2, 1, 2, 3, 5, 30]),
    sync_mode=st.integers(0, 3),
    serialization=st.sampled_from([(), ("0:",), (2, "4:6"), ("-3:",)]),
    window=st.sampled_from([None, 0, 300]),
)
rules = st.sampled_from([every_op, device_rule()])


@given(random_graphs(), parameters, rules)
def test_a_plan_closes_no_cycle_and_can_be_taken_away(built: Graph, asked: Parameters, rule: object) -> None:
    plan = plan_by_distance(GraphContext(built, is_device_op=rule), asked)  # type: ignore[arg-type]
    check(built, plan)

    assert find_cycle(edited(built, plan)) == ()
    assert unedited(edited(built, plan), plan) == built


@given(random_graphs(), parameters, rules)
def test_a_plan_keeps_its_rules(built: Graph, asked: Parameters, rule: object) -> None:
    context = GraphContext(built, is_device_op=rule)  # type: ignore[arg-type]
    plan = plan_by_distance(context, asked)
    slots = [slot for back in plan.swap_ins for slot in back.consumers]
    names = [each.name for each in (*plan.swap_outs, *plan.swap_ins)]
    touched = {name for edge in plan.edges for name in edge} | {slot.op for slot in slots}
    touched |= {out.tensor.op for out in plan.swap_outs}

    assert len(set(slots)) == len(slots)
    assert len(set(names)) == len(names)
    assert len(set(plan.edges)) == len(plan.edges)
    assert {back.swap_out for back in plan.swap_ins} == {out.name for out in plan.swap_outs}
    assert not any(is_collective(built.ops[name]) for name in touched if name in built.ops)
    assert not any(first in context.conditional for first, _ in plan.edges)


@given(random_graphs(), parameters)
def test_the_plan_does_not_depend_on_how_the_graph_was_told(built: Graph, asked: Parameters) -> None:
    again = Graph.from_json(built.to_json())

    assert plan_by_distance(GraphContext(again), asked).digest == plan_by_distance(GraphContext(built), asked).digest


@given(random_graphs(), parameters)
def test_a_larger_threshold_moves_no_more_bytes(built: Graph, asked: Parameters) -> None:
    def moved(threshold: int) -> Plan:
        return plan_by_distance(GraphContext(built), Parameters(threshold, asked.swapin_groupby, 1, asked.sync_mode))

    nbytes = [moved(threshold).nbytes_out for threshold in range(1, 12)]

    assert nbytes == sorted(nbytes, reverse=True)


@given(random_graphs())
def test_every_edge_goes_up_in_level(built: Graph) -> None:
    levels = sort(built)
    edges = [(use.op, op.name) for op in built.ops.values() for use in op.inputs]
    edges += [(first, op.name) for op in built.ops.values() for first in op.controls]

    assert all(levels[first] < levels[then] for first, then in edges)
    assert sorted(levels.in_order()) == sorted(built.ops)


PROGRAM = """
import sys
from hpcckpt.lms.planner.parameter_search import search
from hpcckpt.lms.planner.distance_planner import plan_by_distance, serialize_levels
from hpcckpt.lms.graph.graph import Graph
from hpcckpt.lms.settings import Parameters
from hpcckpt.lms.planner.plan import Plan
from hpcckpt.lms.graph.graph_context import GraphContext
from hpcckpt.lms.planner.simulate import simulate
assert "tensorflow" not in sys.modules
context = GraphContext(Graph.from_json(sys.stdin.read()))
for mode in range(4):
    print(plan_by_distance(context, Parameters(2, 1, 2, mode, ("2:9",))).digest)
level_layout = serialize_levels(context)
found = search(level_layout, Parameters(), simulate(context, level_layout.levels, Plan()).peak * 9 // 10)
print(found.parameters, found.plan.digest, len(found.plan.swap_outs))
"""


def test_ten_hash_seeds_give_one_plan() -> None:
    told = tangle(150, 2).to_json()
    asked = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(PYTHONHASHSEED=str(seed)),
        )
        for seed in range(10)
    ]
    answers = {each.communicate(told)[0] for each in asked}

    assert len(answers) == 1
    assert all(each.returncode == 0 for each in asked)
    assert int(answers.pop().split()[-1]) > 5
