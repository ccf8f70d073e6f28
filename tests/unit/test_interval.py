"""The interval between saves: Young's and Daly's formulas, and what the planner learns."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, strategies as st

from hpcckpt.interval import IntervalPlanner, daly, job_mtbf, young

pytestmark = pytest.mark.one_case

costs = st.floats(1e-3, 1e4)
mtbfs = st.floats(60.0, 1e7)


def expected_time(interval_s, cost_s, mtbf_s):
    """Daly's expected time per second of work, without what a restart costs, which depends on no interval."""
    return mtbf_s * math.expm1((interval_s + cost_s) / mtbf_s) / interval_s


def best_interval(cost_s, mtbf_s):
    """The minimum of `expected_time`, by golden section in the logarithm."""
    low, high = math.log(1e-6), math.log(20 * mtbf_s)
    ratio = (math.sqrt(5) - 1) / 2
    for _ in range(200):
        a, b = high - ratio * (high - low), low + ratio * (high - low)
        if expected_time(math.exp(a), cost_s, mtbf_s) < expected_time(math.exp(b), cost_s, mtbf_s):
            high = b
        else:
            low = a
    return math.exp((low + high) / 2)


def test_known_values():
    assert young(300, 86400) == 7200
    assert daly(300, 86400) == pytest.approx(7001.389, abs=1e-3)
    assert daly(1, 50) == pytest.approx(9.344, abs=1e-3)
    assert daly(100, 50) == 50
    assert job_mtbf(5 * 365 * 86400, 1000) == pytest.approx(157680)


@given(costs, st.floats(2.001, 1e8))
def test_daly_is_close_to_the_best_there_is(cost_s, n_costs):
    mtbf_s = cost_s * n_costs
    best = expected_time(best_interval(cost_s, mtbf_s), cost_s, mtbf_s)
    assert expected_time(daly(cost_s, mtbf_s), cost_s, mtbf_s) <= best * 1.002


@given(costs, st.floats(1e4, 1e8))
def test_for_short_saves_young_and_daly_are_the_same(cost_s, n_costs):
    mtbf_s = cost_s * n_costs
    assert daly(cost_s, mtbf_s) == pytest.approx(young(cost_s, mtbf_s), rel=0.02)


@given(costs, st.floats(2.001, 1e8), st.floats(1.0, 100.0))
def test_dearer_saves_and_better_machines_mean_longer_intervals(cost_s, n_costs, factor):
    mtbf_s = cost_s * factor * n_costs
    assert daly(cost_s * factor, mtbf_s) >= daly(cost_s, mtbf_s) * (1 - 1e-9)
    assert daly(cost_s, mtbf_s * factor) >= daly(cost_s, mtbf_s) * (1 - 1e-9)


# -- the planner -----------------------------------------------------------------------------------


@given(st.lists(costs, min_size=1, max_size=20), mtbfs, st.floats(0.001, 0.5))
def test_saves_never_take_more_than_their_part(stalls, mtbf_s, cap):
    planner = IntervalPlanner(mtbf_s, cap)
    for stall in stalls:
        planner.observe_save(stall, stall)
    assert planner.cost_s / planner.period_s <= cap * (1 + 1e-9)


@given(st.floats(0, 10), st.floats(0, 100), mtbfs)
def test_the_interval_leaves_a_save_time_to_end(stall, more, mtbf_s):
    planner = IntervalPlanner(mtbf_s, min_interval_s=1.0)
    planner.observe_save(stall, stall + more)
    assert planner.interval_s >= 2 * (stall + more)
    assert planner.interval_s >= planner.min_interval_s


def test_before_the_first_save_the_interval_is_the_shortest():
    planner = IntervalPlanner(86400.0, min_interval_s=42.0)
    assert planner.cost_s is None
    assert planner.period_s == 42.0


def test_the_first_save_counts_until_there_is_a_second():
    planner = IntervalPlanner(86400.0)
    planner.observe_save(10.0, 10.0)
    assert planner.cost_s == 10.0
    planner.observe_save(1.0, 1.0)
    planner.observe_save(2.0, 2.0)
    assert planner.cost_s == 1.5


def test_steps_that_are_longer_while_a_save_goes_on_are_part_of_its_cost():
    planner = IntervalPlanner(86400.0)
    for _ in range(10):
        planner.observe_step(0.1, is_saving=False)
    for seconds in (0.4, 0.3, 0.1):
        planner.observe_step(seconds, is_saving=True)
    planner.observe_save(0.01, 5.0)
    assert planner.cost_s == pytest.approx(0.5)


def test_a_validation_during_a_save_does_not_count_as_its_cost():
    planner = IntervalPlanner(86400.0)
    planner.observe_step(0.1, is_saving=False)
    planner.observe_step(600.0, is_saving=True)
    planner.observe_save(0.01, 2.0)
    assert planner.cost_s == 2.0, "no more than the save lasted"
