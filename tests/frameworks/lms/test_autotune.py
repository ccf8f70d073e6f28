"""The search of TFLMSv2: what it refuses, when it finds nothing to do, and that it finds the largest that fits."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from hpcckpt.errors import OptionError
from hpcckpt.lms import messages
from hpcckpt.lms.graph.filters import Filters
from hpcckpt.lms.graph.graph import Graph
from hpcckpt.lms.graph.graph_context import GraphContext
from hpcckpt.lms.graph.levels import histogram, sort
from hpcckpt.lms.planner.distance_planner import plan_on, serialize_levels
from hpcckpt.lms.planner.edited_graph import check
from hpcckpt.lms.planner.parameter_search import SearchResult, is_wanted, search
from hpcckpt.lms.planner.plan import Plan
from hpcckpt.lms.planner.simulate import simulate
from hpcckpt.lms.settings import Parameters
from tests.support.lms.graphs import chain, graph, hourglass, op, random_graphs

pytestmark = pytest.mark.one_case

KIB = (4, 64)
STEP = hourglass(20, shape=KIB)
"""20 layers of 1 KiB each way: 21 KiB at its peak."""


def found(kib: float, built: Graph = STEP, **asked: int) -> SearchResult:
    return search(serialize_levels(GraphContext(built)), Parameters(**asked), int(kib * 1024))


def fits(parameters: Parameters, kib: float, built: Graph = STEP) -> bool:
    level_layout = serialize_levels(GraphContext(built))
    return simulate(level_layout.context, level_layout.levels, plan_on(level_layout, parameters), int(kib * 1024)).fits


# -- when it is on


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (Parameters(), True),
        (Parameters(5, 0, 1), False),
        (Parameters(-1, 0, 1), True),
        (Parameters(5, -1, 1), True),
        (Parameters(5, 0, -1), True),
        (Parameters(5, -1, -1, 2), False),
        (Parameters(5, -1, -1, 3), False),
        (Parameters(5, -1, -1, 1), True),
        (Parameters(-1, 0, 1, 2), True),
        (Parameters(5, 0, -2), False),
    ],
)
def test_it_is_on_if_a_parameter_that_matters_is_left_open(asked: Parameters, expected: bool) -> None:
    assert is_wanted(asked) == expected


# -- what it refuses


def test_a_while_loop_is_refused() -> None:
    built = graph(op("x"), op("while/Enter", "x", kind="Enter"))

    with pytest.raises(ValueError, match="Auto-tuning does not work since the graph has a while-loop"):
        found(99, built)


def test_a_placeholder_of_unknown_batch_is_refused() -> None:
    fed = op("x", kind="Placeholder", shape=(None, 8))

    with pytest.raises(ValueError, match="set the mini-batch size on the batch_size property"):
        found(99, graph(fed))


@pytest.mark.parametrize("kind", ["IteratorGetNext", "_Arg"])
def test_what_comes_from_a_data_set_in_unknown_batches_is_refused(kind: str) -> None:
    with pytest.raises(ValueError, match="the training batch size has not been set"):
        found(99, graph(op("x", kind=kind, shape=(None, 8))))


@pytest.mark.parametrize("shape", [(), None, (4, None)])
def test_a_placeholder_of_known_batch_or_of_none_is_not(shape: object) -> None:
    assert not found(99, graph(op("x", kind="Placeholder", shape=shape))).is_necessary


def test_a_batch_size_that_is_told_is_used() -> None:
    fed = op("x", kind="Placeholder", shape=(None, 256))
    context = GraphContext(graph(fed, op("y", "x", shape=(None, 256))), batch_size=4)

    assert search(serialize_levels(context), Parameters(), 9 * 1024).without.peak == 8 * 1024


def test_a_scope_that_matches_nothing_is_refused() -> None:
    context = GraphContext(STEP, filters=Filters.of(excl_input_by_scopes={"nowhere"}))

    with pytest.raises(ValueError, match="No operations were found with scope nowhere"):
        search(serialize_levels(context), Parameters(), 99 * 1024)


# -- what it finds


def test_what_fits_without_is_not_necessary() -> None:
    result = found(22)

    assert not result.is_necessary
    assert not result.plan
    assert result.sets == ()
    assert result.without.peak == 21 * 1024
    assert result.trace == result.without


def test_what_does_not_fit_is_swapped_until_it_does() -> None:
    result = found(12)

    assert result.is_necessary
    assert result.trace.peak < 12 * 1024 < result.without.peak
    assert result.plan == plan_on(serialize_levels(GraphContext(STEP)), result.parameters)
    check(STEP, result.plan)


@pytest.mark.parametrize("kib", [4.5, 6, 9, 12, 16, 20])
def test_the_largest_threshold_that_fits_is_found(kib: float) -> None:
    result = found(kib)
    start = replace(result.sets[0], swapin_ahead=1, swapin_groupby=0)
    thresholds = [value for value in range(1, 41) if fits(replace(start, swapout_threshold=value), kib)]

    assert result.parameters.swapout_threshold == max(thresholds)


@pytest.mark.parametrize("kib", [6, 12, 20])
def test_the_largest_ahead_that_fits_and_has_triggers_is_found(kib: float) -> None:
    result = found(kib)
    start = replace(result.parameters, swapin_groupby=0)
    all_reaches = serialize_levels(GraphContext(STEP)).reaches
    shortest = min(level - each.level for each in all_reaches for level, _ in each.consumers
                   if level - each.level > start.swapout_threshold)  # fmt: skip
    aheads = [value for value in range(1, shortest - 1) if fits(replace(start, swapin_ahead=value), kib)]

    assert result.parameters.swapin_ahead == max(aheads)


def test_all_consumers_share_a_swap_in_if_that_fits() -> None:
    assert found(12).parameters.swapin_groupby == 40


def test_fewer_consumers_share_a_swap_in_if_that_does_not_fit() -> None:
    """`s` is wanted on levels 16, 18 and 30, and on level 24 there is no room for it."""
    ends = [op("c", "s", "l15"), op("c2", "s", "l17"), op("d", "s", "l29")]
    built = chain(32, op("s", "l00", shape=KIB), op("mid", "l23", shape=KIB), op("mid2", "mid", shape=KIB), *ends)
    result = found(2.6, built, swapout_threshold=10, swapin_ahead=1)

    assert 2 <= result.parameters.swapin_groupby < 12
    assert fits(result.parameters, 2.6, built)


def test_each_set_that_was_found_is_told_in_order() -> None:
    first, second, third = found(12).sets

    assert (first.swapin_ahead, first.swapin_groupby) == (1, 0)
    assert second == replace(first, swapin_ahead=second.swapin_ahead)
    assert third == found(12).parameters


def test_what_is_given_is_kept() -> None:
    result = found(12, swapout_threshold=5, swapin_ahead=2)

    assert (result.parameters.swapout_threshold, result.parameters.swapin_ahead) == (5, 2)
    assert len(result.sets) == 1


def test_a_step_that_would_fit_is_swapped_all_the_same_if_a_parameter_was_given() -> None:
    assert found(99, swapout_threshold=5).is_necessary


def branchy() -> Graph:
    """Make a graph whose swap-outs are not done in time unless compute waits for them."""
    wide = [op(f"x{i}", "n1", shape=KIB) for i in range(4)]
    ends = [op("end", *(each.name for each in wide))]
    return chain(20, op("s", "l00", shape=KIB), op("n1", "s", shape=KIB), *wide, *ends, op("c", "s", "l15", shape=KIB))


def test_if_the_smallest_threshold_does_not_fit_synchronous_modes_are_tried() -> None:
    level_layout = serialize_levels(GraphContext(branchy()))
    peaks = [
        simulate(level_layout.context, level_layout.levels, plan_on(level_layout, Parameters(1, 0, 1, mode))).peak
        for mode in range(4)
    ]
    tight = min(peaks) + 1
    result = search(level_layout, Parameters(), tight)

    assert result.parameters.sync_mode == peaks.index(min(peaks))


def test_if_nothing_fits_the_user_is_asked() -> None:
    with pytest.raises(OptionError) as caught:
        found(2)

    assert str(caught.value) == messages.NOT_FOUND.format("swapout_threshold")


@pytest.mark.parametrize(("given", "name"), [({"swapout_threshold": 39}, "swapin_ahead")])
def test_what_is_not_found_is_named(given: dict[str, int], name: str) -> None:
    with pytest.raises(OptionError, match=f"unable to find a value for {name}"):
        found(3, **given)


def test_synchronous_swap_ins_need_no_ahead() -> None:
    result = found(12, sync_mode=2)

    assert (result.parameters.swapin_ahead, result.parameters.swapin_groupby) == (1, 0)
    assert len(result.sets) == 1


def test_a_search_again_finds_the_same() -> None:
    assert found(9) == found(9)


@given(random_graphs(), st.floats(0.3, 1.2))
def test_what_is_found_fits(built: Graph, part: float) -> None:
    level_layout = serialize_levels(GraphContext(built))
    available = int(part * simulate(level_layout.context, level_layout.levels, Plan()).peak)
    try:
        result = search(level_layout, Parameters(), available)
    except OptionError:
        return
    check(built, result.plan)

    assert result.trace.peak <= available
    assert simulate(level_layout.context, level_layout.levels, result.plan, available).fits


# -- the histogram of distances


def test_the_histogram_counts_all_edges_by_distance() -> None:
    built = chain(4, op("c", "l00", "l02", "^l01"))

    assert histogram(built, sort(built)) == {1: 4, 2: 1, 3: 1}
    assert sum(histogram(built, sort(built)).values()) == built.n_edges
