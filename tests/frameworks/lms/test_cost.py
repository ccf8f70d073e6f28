"""The cost planner: budgets are met in any execution, with little exposed time; one graph, one plan."""

from __future__ import annotations

import itertools
import random
import subprocess
import sys

import pytest
from hypothesis import given, settings, strategies as st

from hpcckpt.errors import ConfigError, MemoryBudgetError
from hpcckpt.lms.graph.graph import InputSlot, Use
from hpcckpt.lms.graph.graph_context import GraphContext
from hpcckpt.lms.graph.op_times import Rates
from hpcckpt.lms.planner.budget_search import Search
from hpcckpt.lms.planner.cost_planner import plan_by_cost
from hpcckpt.lms.planner.edited_graph import check, edited, find_cycle
from hpcckpt.lms.planner.op_schedule import orders, refined
from hpcckpt.lms.planner.swap_timeline import timeline
from tests.support.lms.cost_plans import DISK, SLOW, plan, steps
from tests.support.lms.graphs import graph, op
from tests.support.lms.steps import MIB, WIDE, layers, peak_of_an_execution
from tests.support.programs import environment

FAST = Rates(flops=1e15, nbytes=2e10, start_ns=1000)


@pytest.mark.parametrize("budget", [6, 9, 14])
def test_no_execution_that_the_edges_allow_takes_more_than_the_budget(budget):
    g = layers(12)
    found = plan(g, budget * MIB)
    check(g, found)
    for seed in range(20):
        assert peak_of_an_execution(g, found, random.Random(seed)) <= budget * MIB


def test_without_a_plan_executions_take_more():
    g = layers(12)
    assert max(peak_of_an_execution(g, type(plan(g, None))(), random.Random(seed)) for seed in range(20)) > 14 * MIB


def test_gradients_of_weights_come_before_the_gradient_of_the_next_layer():
    order = next(orders(GraphContext(layers(6)), MIB // 8))
    assert order.index("d04") < order.index("r03")
    assert order.index("u04") < order.index("r03")


def test_an_ample_budget_needs_nothing():
    assert not plan(layers(6), 100 * MIB)


def test_a_budget_that_order_alone_meets_needs_no_swaps():
    found = plan(layers(6), steps(layers(6)).peak)
    assert found.edges
    assert not found.swap_outs
    assert not found.copies


def test_a_budget_that_cannot_be_met_is_refused_with_the_nearest_one_that_can():
    with pytest.raises(MemoryBudgetError, match="nearest budget") as caught:
        plan(layers(12), MIB)
    assert isinstance(caught.value, ConfigError)
    assert isinstance(caught.value, ValueError)
    assert plan(layers(12), caught.value.nearest).swap_outs
    with pytest.raises(MemoryBudgetError):
        plan(layers(12), caught.value.nearest - 1)


@pytest.mark.parametrize("rates", [SLOW, FAST])
def test_a_larger_budget_never_takes_longer(rates):
    g = layers(7, norm=True)
    times = [plan(g, budget * MIB // 2, rates).parameters["time_after_ns"] for budget in range(10, 32, 5)]
    assert times == sorted(times, reverse=True)


def test_transfers_hide_behind_slow_ops():
    figures = plan(layers(12), 7 * MIB).parameters
    assert figures["time_after_ns"] == figures["time_before_ns"]


def test_where_ops_are_fast_time_is_exposed_and_a_budget_is_weighed_against_it():
    least = plan(layers(12), None, FAST, slowdown=1e6).parameters
    bounded = plan(layers(12), None, FAST, slowdown=1.5).parameters
    assert bounded["time_after_ns"] <= 1.5 * bounded["time_before_ns"]
    assert bounded["budget"] > least["budget"]


def test_the_smallest_set_that_does_is_taken():
    assert len(plan(layers(12), 12 * MIB).swap_outs) < len(plan(layers(12), 7 * MIB).swap_outs)


def test_far_consumers_take_what_came_back_and_near_ones_the_tensor():
    found = plan(layers(12), 7 * MIB)
    back = next(swap for swap in found.swap_ins if "z00" in swap.name)
    assert {slot.op for slot in back.consumers} == {"d01", "r00"}
    assert edited(layers(12), found).ops["h01"].inputs[0] == Use("z00", 0)


def test_an_alias_is_made_again_of_what_came_back():
    ops = dict(layers(8).ops)
    ops["s02"] = op("s02", "z02", kind="Reshape", shape=(256, 1024))
    ops["h03"] = op("h03", "s02", "w03", kind="Conv2D", shape=WIDE)
    ops["d03"] = op("d03", "s02", "r03", kind="MatMul", shape=(512, 128))
    g = graph(*ops.values())
    found = plan(g, 6 * MIB)
    check(g, found)
    copy = next(copy for copy in found.copies if copy.op == "s02")
    assert [slot for _, slot in copy.consumers] == [InputSlot("d03", 0)]
    assert copy.inputs[0].op.startswith("lms/swapin_z02")
    assert peak_of_an_execution(g, found, random.Random(1)) <= 6 * MIB


def test_collectives_and_what_comes_behind_them_are_in_no_edge():
    ops = dict(layers(8).ops)
    for layer in range(8):
        ops[f"a{layer:02}"] = op(f"a{layer:02}", f"d{layer:02}", kind="HorovodAllreduce", shape=(512, 128))
        ops[f"u{layer:02}"] = op(
            f"u{layer:02}", f"v{layer:02}", f"a{layer:02}", kind="ResourceApplyGradientDescent", n=0
        )
    found = plan(graph(*ops.values()), 8 * MIB)
    touched = {name for edge in found.edges for name in edge}
    assert found.swap_outs
    assert not touched & {f"{kind}{layer:02}" for kind in "au" for layer in range(8)}
    assert all(swap.tensor.op[0] not in "ad" for swap in found.swap_outs)


def test_conditional_ops_are_in_no_edge():
    ops = dict(layers(8).ops)
    ops["p"] = op("p", kind="Const", dtype="bool", shape=())
    ops["sw"] = op("sw", "z03", "p", kind="Switch", n=2, shape=WIDE)
    ops["t"] = op("t", "sw:1", kind="MatMul", shape=WIDE)
    ops["m"] = op("m", "sw", "t", kind="Merge", shape=WIDE)
    ops["r05"] = op("r05", "g06", "m", kind="ReluGrad", shape=WIDE)
    g = graph(*ops.values())
    found = plan(g, 12 * MIB)
    check(g, found)
    assert "t" not in {name for edge in found.edges for name in edge}


def test_filters_are_kept_to():
    from hpcckpt.lms.graph.filters import Filters

    context = GraphContext(layers(12), filters=Filters.of(excl_output_by_scopes=["z00", "z01"]))
    found = plan_by_cost(context, 9 * MIB, DISK, rates=SLOW)
    assert not {"z00", "z01"} & {swap.tensor.op for swap in found.swap_outs}


def test_a_measured_order_is_kept_but_for_what_frees_memory():
    late = sorted(next(orders(GraphContext(layers(6)), MIB // 8)), key=lambda name: name[0] in "du")
    order = refined(GraphContext(layers(6)), late, MIB // 8)
    assert [name for name in order if name[0] in "zrg"] == [name for name in late if name[0] in "zrg"]
    assert order.index("d04") < order.index("r03")
    check(layers(6), plan(layers(6), 8 * MIB, order=late))


def test_measured_times_count_more_than_estimates():
    from dataclasses import replace

    g = layers(6)
    measured = graph(*(replace(each, cost_ns=7_000_000) for each in g.ops.values()))
    figures = plan(measured, 100 * MIB).parameters
    assert figures["time_before_ns"] == figures["n_steps"] * 7_000_000


@given(
    depth=st.integers(2, 9), norm=st.booleans(), tight=st.floats(0, 1), seed=st.integers(0, 99), is_fast=st.booleans()
)
@settings(max_examples=8, deadline=None)
def test_plans_of_random_steps_are_acyclic_and_keep_their_budget(depth, norm, tight, seed, is_fast):
    g = _tangled(layers(depth, norm=norm), random.Random(seed))
    rates = FAST if is_fast else SLOW
    floor = min(Search(each, DISK).floor for each in [steps(g, rates)])
    budget = int(floor + tight * (steps(g, rates).peak - floor))
    try:
        found = plan(g, budget, rates)
    except MemoryBudgetError as error:
        found = plan(g, budget := error.nearest, rates)
    assert find_cycle(edited(g, found)) == ()
    if found.edges:
        assert peak_of_an_execution(g, found, random.Random(seed)) <= budget


def _tangled(g, chance):
    """Add skip connections of chance, forward and from forward to backward."""
    ops = dict(g.ops)
    activations = [name for name in sorted(ops) if name[0] == "z"]
    for number in range(chance.randrange(4)):
        first, then = sorted(chance.sample(activations, 2))
        ops[f"k{number}"] = op(f"k{number}", first, then, kind="AddV2", shape=WIDE)
        layer = then[1:]
        ops[f"g{layer}"] = op(
            f"g{layer}", *map(str, g.ops[f"g{layer}"].inputs), f"k{number}", kind="MatMul", shape=WIDE
        )
    return graph(*ops.values())


@pytest.mark.parametrize("tight", [0.0, 0.4, 0.7])
@pytest.mark.parametrize(("depth", "recompute"), [(3, True), (3, False)])
@pytest.mark.parametrize("rates", [SLOW, FAST, Rates(1e9, 4e9)])
def test_no_choice_at_all_is_much_better(depth, recompute, rates, tight):
    steps_of = steps(layers(depth), rates, recompute=recompute)
    search = Search(steps_of, DISK)
    budget = int(search.floor + tight * (steps_of.peak - search.floor))
    *_, found = search.points(budget)
    ways = [(None, "swap") if gap.recomputation is None else (None, "swap", "recompute") for gap in steps_of.gaps]
    choices = ({n: way for n, way in enumerate(each) if way} for each in itertools.product(*ways))
    times = (run.total_ns for choice in choices if (run := timeline(steps_of, choice, found.budget, DISK)))
    assert found.timeline.total_ns <= 1.02 * min(times)


def test_the_same_plan_in_every_process():
    imports = "from tests.support.lms.steps import MIB, layers; from tests.support.lms.cost_plans import plan"
    program = f"{imports}; print(plan(layers(10, norm=True), 8 * MIB).digest)"
    digests = {
        subprocess.run(
            [sys.executable, "-c", program],
            env=environment(PYTHONHASHSEED=seed),
            check=True, capture_output=True, text=True,
        ).stdout
        for seed in ("0", "1", "2")
    }  # fmt: skip
    assert len(digests) == 1
