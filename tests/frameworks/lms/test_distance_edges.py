"""The planner of TFLMSv2: when tensors come back, and what waits for what."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hpcckpt.lms.graph.filters import Filters, device_rule
from hpcckpt.lms.graph.graph import Graph
from hpcckpt.lms.graph.graph_context import GraphContext
from hpcckpt.lms.planner.distance_planner import plan_by_distance
from hpcckpt.lms.planner.edited_graph import check
from hpcckpt.lms.settings import Parameters
from tests.support.lms.graphs import chain, far, graph, hourglass, op, planned

pytestmark = pytest.mark.one_case

THREE = [op("c5", "s", "l04"), op("c7", "s", "l06"), op("c10", "s", "l09")]


# -- triggers


@pytest.mark.parametrize(("ahead", "trigger"), [(1, "l07"), (2, "l06"), (3, "l05"), (4, "l04")])
def test_a_swap_in_waits_for_an_op_so_many_levels_ahead(ahead: int, trigger: str) -> None:
    assert planned(far(level=9), ahead=ahead).edges == ((trigger, "lms/swapin_s_0"),)


def test_of_several_the_first_by_name_is_the_trigger() -> None:
    built = chain(12, op("s", "l00"), op("a5", "l04"), op("m6", "a5", "l05"), op("c", "s", "m6"))

    assert planned(built).edges == (("a5", "lms/swapin_s_0"),)


def test_a_trigger_leads_to_the_consumer_by_data() -> None:
    built = far(op("aside", "l04"), level=7)

    assert planned(built).edges == (("l05", "lms/swapin_s_0"),)


def test_the_trigger_of_a_group_is_ahead_of_its_earliest_consumer() -> None:
    built = chain(12, op("s", "l00"), op("late", "s", "l08"), op("soon", "s", "l05"))

    assert planned(built, groupby=9).edges == (("l04", "lms/swapin_s_0"),)


@pytest.mark.parametrize(("n_host", "edges"), [(9, (("l02", "lms/swapin_s_0"),)), (10, ())])
def test_a_trigger_is_sought_on_ten_levels_only(n_host: int, edges: tuple[tuple[str, str], ...]) -> None:
    """All that leads to `c` is on the host, but what is on levels 0 to 2 and right before it."""
    host = [op(f"l{i:02}", f"l{i - 1:02}", device="/cpu:0") for i in range(3, n_host + 4)]
    built = graph(*chain(3).ops.values(), *host, op("s", "l00"), op("c", "s", host[-1].name))

    assert planned(built, is_device_op=device_rule()).edges == edges


def test_without_a_trigger_a_swap_in_waits_for_what_else_its_consumer_takes() -> None:
    built = chain(6, op("s", "l00"), op("c", "s", "l04"))

    assert planned(built, ahead=4).edges == (("l04", "lms/swapin_s_0"),)


def test_a_swap_in_does_not_wait_for_weights_only() -> None:
    """They have been there from the start: it would come back at once."""
    weights = op("w", kind="ReadVariableOp")
    built = chain(16, op("s", "l00"), weights, op("c", "s", "w", "^l13"))

    assert ("l13", "lms/swapin_s_0") in planned(built, sync=2).edges


def test_inside_a_branch_a_swap_in_waits_for_what_always_runs() -> None:
    branch = [op("p", "l08", dtype="bool"), op("if", "l08", "p", kind="Switch", n=2), op("yes", "if:1")]
    built = chain(12, op("s", "l00"), *branch, op("c", "yes", "s"))

    assert planned(built).edges == (("if", "lms/swapin_s_0"),)


def test_a_sequence_of_swap_ins_follows_the_gaps_between_their_consumers() -> None:
    more = [op("s", "l00"), op("c6", "s", "l05"), op("c11", "s", "l10"), op("c13", "s", "l12")]
    plan = planned(chain(16, *more), ahead=-2)

    assert plan.edges == (
        ("l02", "lms/swapin_s_0"),
        ("l05", "lms/swapin_s_0_1"),
        ("l10", "lms/swapin_s_0_2"),
    )


@pytest.mark.parametrize(
    "bad",
    [
        {"kind": "FusedBatchNorm", "is_training": False},
        {"kind": "HorovodAllreduce"},
        {"device": "/cpu:0"},
        {"frame": "loop"},
    ],
)
def test_what_is_no_trigger_is_passed_over(bad: dict[str, object]) -> None:
    built = far(level=9)
    ops = {**built.ops, "l07": replace(op("l07", "l06", **bad), inputs=built.ops["l07"].inputs)}  # type: ignore[arg-type]
    plan = planned(Graph.of(ops.values()), is_device_op=device_rule())

    assert ("l07", "lms/swapin_s_0") not in plan.edges


def test_a_branch_is_no_trigger_but_its_merge_is() -> None:
    branch = [
        op("p", dtype="bool"),
        op("cond/Switch", "l00", "p", kind="Switch", n=2),
        op("cond/yes", "cond/Switch:1"),
        op("cond/more", "cond/yes"),
        op("cond/Merge", "cond/more", "cond/Switch:0", kind="Merge", n=2),
    ]
    rest = [op(f"m{i}", f"m{i - 1}" if i else "cond/Merge") for i in range(4)]
    built = graph(op("l00"), op("s", "l00"), *branch, *rest, op("c", "s", "m3"))

    assert planned(built, ahead=1).edges == (("m2", "lms/swapin_s_0"),)
    assert planned(built, ahead=4).edges == (("cond/Merge", "lms/swapin_s_0"),)
    assert all(first not in ("cond/yes", "cond/more") for first, _ in planned(built, ahead=5).edges)


# -- synchronous modes

BRANCHED = [op("s", "l00"), op("n1", "s"), op("n2", "n1", "s"), op("c", "s", "l06", "n1")]
ONLY_S = Filters.of(incl_output_by_scopes={"s"})


def test_mode_0_lets_nothing_wait_but_by_distance() -> None:
    assert planned(chain(12, *BRANCHED), filters=ONLY_S).edges == (("l05", "lms/swapin_s_0"),)


def test_mode_1_lets_compute_wait_for_swap_outs() -> None:
    assert planned(chain(12, *BRANCHED), sync=1, filters=ONLY_S).edges == (
        ("l05", "lms/swapin_s_0"),
        ("lms/swapout_s_0", "n1"),
        ("lms/swapout_s_0", "n2"),
    )


def test_mode_2_lets_swap_ins_wait_for_all_else_that_is_taken() -> None:
    assert planned(chain(12, *BRANCHED), sync=2, filters=ONLY_S).edges == (
        ("l06", "lms/swapin_s_0"),
        ("n1", "lms/swapin_s_0"),
    )


def test_mode_3_is_both() -> None:
    assert set(planned(chain(12, *BRANCHED), sync=3, filters=ONLY_S).edges) == {
        ("l06", "lms/swapin_s_0"),
        ("n1", "lms/swapin_s_0"),
        ("lms/swapout_s_0", "n1"),
        ("lms/swapout_s_0", "n2"),
    }


def test_a_consumer_without_other_inputs_waits_for_the_level_before() -> None:
    built = chain(12, op("s", "l00"), op("c", "s", "^l06"))

    assert planned(built, sync=2).edges == (("l06", "lms/swapin_s_0"),)


@pytest.mark.parametrize("sync", [2, 3])
def test_synchronous_swap_ins_ignore_ahead_and_groupby(sync: int) -> None:
    built = chain(12, op("s", "l00"), *THREE)

    assert replace(planned(built, groupby=9, ahead=5, sync=sync), parameters={}) == replace(
        planned(built, sync=sync), parameters={}
    )


@pytest.mark.parametrize("sync", [0, 1, 2, 3])
def test_no_edge_closes_a_cycle(sync: int) -> None:
    """`c` consumes what `n2` makes, which consumes `s`: if `n2` waited for the swap-in, all would wait for ever."""
    built = chain(12, op("s", "l00"), op("n1", "s"), op("n2", "n1"), op("c", "s", "n2", "l08"), op("d", "c", "s"))

    assert planned(built, threshold=2, sync=sync)


@pytest.mark.parametrize("sync", [1, 2, 3])
def test_the_modes_are_for_all_ops_of_the_host_once_there_are_swaps(sync: int) -> None:
    host = op("host", "l03", device="/cpu:0")
    built = far(host, op("takes", "host", "l04"), op("beside", "l03"))
    edges = planned(built, sync=sync, is_device_op=device_rule()).edges

    assert (("host", "beside") in edges) == (sync in (1, 3))
    assert (("l04", "host") in edges) == (sync == 2)  # in mode 3 it waits for `host` already
    assert planned(built, threshold=99, sync=sync, is_device_op=device_rule()).edges == ()


@pytest.mark.parametrize(
    ("window", "edges"),
    [
        (None, []),
        (4 * 128, []),
        (2 * 128, [("f00", "f02"), ("f01", "f03")]),
        (128, [("f00", "f01"), ("f01", "f02"), ("f02", "f03")]),
        (0, [("f00", "f01"), ("f01", "f02"), ("f02", "f03")]),
    ],
)
def test_no_more_than_a_window_is_on_its_way_out(window: int | None, edges: list[tuple[str, str]]) -> None:
    built = hourglass(6)
    plan = plan_by_distance(GraphContext(built), Parameters(4, 0, 1, window=window))
    check(built, plan)

    assert [edge for edge in plan.edges if "swapout" in edge[0]] == [(f"lms/swapout_{a}_0", b) for a, b in edges]


def test_collectives_are_never_ordered() -> None:
    built = chain(12, op("s", "l00"), op("sum", "s", kind="HorovodAllreduce"), op("c", "s", "sum", "l08"))

    for sync in range(4):
        assert all("sum" not in edge for edge in planned(built, sync=sync).edges)
