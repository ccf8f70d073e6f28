"""Computing again what is cheap instead of moving it."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from hpcckpt.lms.graph.graph import Op, Output, Use
from hpcckpt.lms.graph.op_times import Rates
from hpcckpt.lms.planner.build_plan import emit
from hpcckpt.lms.planner.edited_graph import check, edited
from hpcckpt.lms.planner.plan import Plan
from hpcckpt.lms.planner.swap_timeline import TierBandwidth, timeline
from tests.support.lms.cost_plans import DISK, SLOW, plan, steps
from tests.support.lms.graphs import graph
from tests.support.lms.steps import MIB, layers, peak_of_an_execution

pytestmark = pytest.mark.one_case

CRAWLING = TierBandwidth(write=1e6, read=1e6)
CHEAP = Rates(flops=1e9, nbytes=1e11)


def recipe_of(found, name):
    gap = next(gap for gap in found.gaps if found.items[gap.item].root.op == name)
    return gap.recomputation


def test_normalization_and_relu_are_computed_again_from_the_convolution():
    recomputation = recipe_of(steps(layers(6, norm=True)), "z02")
    assert recomputation.ops == ("n02", "z02")


def test_convolutions_are_not_computed_again():
    assert recipe_of(steps(layers(6, norm=True)), "h02") is None


def test_without_recompute_nothing_is():
    assert not plan(layers(8, norm=True), 8 * MIB, CHEAP, CRAWLING, recompute=False).copies


def test_what_chance_made_is_not_computed_again():
    g = layers(6, norm=True)
    ops = {**g.ops, "n02": replace(g.ops["n02"], is_stateful=True)}
    assert "n02" not in recipe_of(steps(graph(*ops.values())), "z02").ops


@pytest.mark.parametrize(("type_", "is_recomputed"), [("VariableV2", False), ("VarHandleOp", True)])
def test_what_takes_a_reference_variable_is_not_computed_again(type_: str, is_recomputed: bool) -> None:
    """Its memory may have been written over since: an optimizer's step is no input of what is computed again."""
    g = layers(6, norm=True)
    small = (Output("float32", (4,)),)
    read = "Identity" if type_ == "VariableV2" else "ReadVariableOp"
    made = [Op("var", type_, outputs=small), Op("var/read", read, inputs=(Use("var", 0),), outputs=small)]
    norm = replace(g.ops["n02"], inputs=(*g.ops["n02"].inputs, Use("var/read", 0)))
    recomputation = recipe_of(steps(graph(*{**g.ops, "n02": norm}.values(), *made)), "z02")
    assert ("n02" in recomputation.ops if recomputation else False) is is_recomputed


def test_over_a_slow_disk_activations_are_computed_again():
    found = plan(layers(8, norm=True), 14 * MIB, CHEAP, CRAWLING)
    assert found.parameters["n_recomputed"] > 0
    assert found.parameters["n_swapped"] < plan(
        layers(8, norm=True), 14 * MIB, CHEAP, CRAWLING, recompute=False
    ).parameters["n_swapped"]  # fmt: skip


def test_over_a_fast_one_they_are_swapped():
    assert plan(layers(8, norm=True), 12 * MIB, SLOW, TierBandwidth(1e12, 1e12)).parameters["n_recomputed"] == 0


def test_copies_take_what_came_back_and_give_it_to_the_gradients():
    g = layers(8, norm=True)
    found = steps(g)
    gaps = reversed(list(enumerate(found.gaps)))
    numbers = {found.items[gap.item].root.op: number for number, gap in gaps}
    choice = {numbers["h02"]: "swap", numbers["z02"]: "recompute"}
    planned = emit(found, choice, timeline(found, choice, found.peak, DISK))
    check(g, planned)
    norm, relu = planned.copies
    assert norm.inputs == (Use("lms/swapin_h02_0", 0),)
    assert relu.inputs == (Use(norm.name, 0),)
    assert {slot.op for _, slot in relu.consumers} == {"r02", "d03"}
    assert edited(g, planned).ops["r02"].inputs[1] == Use(relu.name, 0)


def test_copies_keep_the_budget_too():
    g = layers(10, norm=True)
    for bandwidth in (CRAWLING, DISK, TierBandwidth(1e8, 1e8)):
        found = plan(g, 9 * MIB, CHEAP, bandwidth)
        for seed in range(10):
            assert peak_of_an_execution(g, found, random.Random(seed)) <= 9 * MIB


def test_a_copy_waits_for_the_step_before_its_consumer():
    found = plan(layers(8, norm=True), 10 * MIB, CHEAP, CRAWLING)
    waiting = {then for _, then in found.edges}
    assert found.copies
    assert {copy.name for copy in found.copies} <= waiting


def test_a_plan_goes_to_json_and_back():
    found = plan(layers(8, norm=True), 14 * MIB, CHEAP, CRAWLING)
    assert found.swap_ins
    assert found.copies
    assert found.edges
    done = replace(
        found, planner="distance", parameters={}, swap_ins=tuple(replace(s, took=()) for s in found.swap_ins)
    )
    assert Plan.from_json(found.to_json()) == done
