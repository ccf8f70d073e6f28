"""TFLMSv2's simulator: what is held while a step runs level by level, with and without a plan."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from hpcckpt.lms.graph.aliases import Aliases
from hpcckpt.lms.graph.filters import device_rule, is_in_variable
from hpcckpt.lms.graph.graph import Graph, Use
from hpcckpt.lms.graph.graph_context import GraphContext
from hpcckpt.lms.planner.distance_planner import plan_on, serialize_levels
from hpcckpt.lms.planner.edited_graph import edited
from hpcckpt.lms.planner.plan import Plan
from hpcckpt.lms.planner.simulate import Trace, simulate
from hpcckpt.lms.settings import Parameters
from tests.support.lms.graphs import chain, graph, hourglass, op, random_graphs

pytestmark = pytest.mark.one_case

KIB = (4, 64)
"""The shape of 1 KiB of float."""


def simulated(built: Graph, threshold: int = 999, ahead: int = 1, sync: int = 0, **context: Any) -> Trace:
    level_layout = serialize_levels(GraphContext(built, **context))
    return simulate(
        level_layout.context, level_layout.levels, plan_on(level_layout, Parameters(threshold, 0, ahead, sync))
    )


def test_a_chain_holds_two_tensors() -> None:
    trace = simulated(chain(5, shape=KIB))

    assert trace.peak == 2048
    assert trace.peak_at == "l01"
    assert trace.memory == (1024, 1024, 1024, 1024, 0)
    assert trace.fits


def test_what_is_needed_again_is_held_until_then() -> None:
    assert simulated(hourglass(6, shape=KIB)).peak == 7 * 1024


def test_swapping_holds_less() -> None:
    assert simulated(hourglass(20, shape=KIB), threshold=3).peak < simulated(hourglass(20, shape=KIB)).peak / 3


def test_what_nobody_takes_is_free_at_once() -> None:
    assert simulated(graph(op("a", shape=KIB), op("b", "a", shape=KIB, n=3))).memory == (1024, 0)


def test_aliases_are_one_buffer() -> None:
    built = graph(
        op("a", shape=KIB),
        op("same", "a", kind="Identity", shape=KIB),
        op("flat", "same", kind="Reshape", shape=(256, 1)),
        op("b", "flat", shape=KIB),
    )

    assert simulated(built).memory == (1024, 1024, 1024, 0)


def test_variables_are_not_memory_of_the_step() -> None:
    built = graph(op("v", kind="VariableV2", shape=KIB), op("read", "v", kind="Identity", shape=KIB), op("a", "read"))

    assert simulated(built).peak == 128


def test_what_comes_from_the_host_is_allocated_where_it_is_taken() -> None:
    built = graph(op("host", device="/cpu:0", shape=KIB), op("a", shape=KIB), op("b", "a", "host", shape=KIB))

    assert simulated(built, is_device_op=device_rule()).memory == (1024, 0)
    assert simulated(built, is_device_op=device_rule()).peak == 3072


def test_inactive_ops_take_no_memory() -> None:
    norm = op("norm", "a", kind="FusedBatchNorm", is_training=False, shape=KIB)

    assert simulated(graph(op("a", shape=KIB), norm)).peak == 1024
    assert simulated(graph(op("a", shape=KIB), norm), is_training=False).peak == 2048


def test_an_unknown_first_dimension_is_the_batch_size() -> None:
    assert simulated(graph(op("a", shape=(None, 64))), batch_size=32).peak == 32 * 64 * 4


@pytest.mark.parametrize(("ahead", "held"), [(1, "l08"), (3, "l06")])
def test_what_comes_back_is_held_from_its_trigger_on(ahead: int, held: str) -> None:
    built = chain(12, op("s", "l00", shape=KIB), op("c", "s", "l09", shape=(1, 1)))
    trace = simulated(built, threshold=3, ahead=ahead)
    at = dict(zip(GraphContext(built).levels.in_order(), trace.memory, strict=True))

    assert at[held] - at["l05" if ahead == 1 else "l04"] == 1024


def test_a_copy_that_compute_waits_for_frees_its_tensor_sooner() -> None:
    beside = [op(f"x{i}", "n1", shape=KIB) for i in range(3)]
    built = chain(
        12, op("s", "l00", shape=KIB), op("n1", "s", shape=KIB), *beside, op("n2", "s", "n1"), op("c", "s", "l09")
    )

    assert simulated(built, threshold=4, sync=1).memory != simulated(built, threshold=4).memory
    assert simulated(built, threshold=4, sync=1).peak <= simulated(built, threshold=4).peak


def test_the_host_holds_what_is_out() -> None:
    trace = simulated(hourglass(6, shape=KIB), threshold=5)

    assert trace.host_peak == 3 * 1024
    assert simulated(hourglass(6, shape=KIB)).host_peak == 0


def test_a_step_that_lacks_memory_fails_at_an_op() -> None:
    context = GraphContext(hourglass(6, shape=KIB))
    trace = simulate(context, context.levels, Plan(), available=5 * 1024)

    assert not trace.fits
    assert trace.failed_at == "f04"
    assert trace.peak == 4 * 1024


# -- against an interpreter that is slow and sure


def naive_peak(context: GraphContext, plan: Plan) -> int:
    """Return the peak by looking, at each op, at all buffers: is it there yet, is it still needed?"""
    order = [name for name in context.levels.in_order() if context.runs_on_device(name)]
    spans = _spans(context, plan, order)
    return max(
        (sum(nbytes for first, last, nbytes in spans if first <= at <= last) for at in range(len(order))), default=0
    )


def _spans(context: GraphContext, plan: Plan, order: list[str]) -> list[tuple[int, int, int]]:
    after = edited(context.graph, plan)
    root = Aliases(after, context.is_device_op).root
    touched: dict[Use, list[int]] = {}
    for at, name in enumerate(order):
        made = [Use(name, number) for number in range(len(after.ops[name].outputs))]
        for use in (*after.ops[name].inputs, *made):
            touched.setdefault(root(use), []).append(at)
    place = {name: at for at, name in enumerate(order)}
    for out in plan.swap_outs:
        waiting = [use for first, then in plan.edges if first == out.name for use in after.ops[then].inputs]
        if root(out.tensor) not in map(root, waiting):
            _hold(context, order, touched[root(out.tensor)])
    for back in plan.swap_ins:
        triggers = [place[first] for first, then in plan.edges if then == back.name and first in place]
        touched[Use(back.name, 0)].extend([max(triggers) + 1] if triggers else [])
    sizes = {use: 0 if is_in_variable(after.ops[use.op]) else after.output(use).nbytes() for use in touched}
    return [(min(at), max(at), sizes[buffer]) for buffer, at in touched.items()]


def _hold(context: GraphContext, order: list[str], near: list[int]) -> None:
    level = context.levels[order[max(near)]]
    near.append(max(at for at, name in enumerate(order) if context.levels[name] == level))


@given(random_graphs(), st.integers(1, 6), st.integers(1, 4), st.integers(0, 3))
def test_the_peak_is_that_of_an_interpreter(built: Graph, threshold: int, ahead: int, sync: int) -> None:
    level_layout = serialize_levels(GraphContext(built))
    plan = plan_on(level_layout, Parameters(threshold, 0, ahead, sync))

    for each in (Plan(), plan):
        assert simulate(level_layout.context, level_layout.levels, each).peak == naive_peak(level_layout.context, each)


@given(random_graphs(), st.integers(1, 6))
def test_a_step_fits_in_more_than_its_peak_and_in_no_less(built: Graph, threshold: int) -> None:
    level_layout = serialize_levels(GraphContext(built))
    plan = plan_on(level_layout, Parameters(threshold, 0, 1))
    peak = simulate(level_layout.context, level_layout.levels, plan).peak

    assert simulate(level_layout.context, level_layout.levels, plan, peak + 1).fits
    assert not peak or not simulate(level_layout.context, level_layout.levels, plan, peak).fits
