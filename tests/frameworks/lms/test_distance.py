"""The planner of TFLMSv2: which tensors go, for whom they come back, and under which names."""

from __future__ import annotations

import pytest

from hpcckpt.lms.graph.filters import Filters, device_rule
from hpcckpt.lms.planner.edited_graph import edited, unedited
from tests.support.lms.graphs import chain, far, gone, graph, groups, hourglass, op, planned

pytestmark = pytest.mark.one_case

# -- candidates


@pytest.mark.parametrize(("threshold", "expected"), [(5, ["s:0"]), (6, [])])
def test_a_tensor_goes_if_a_consumer_is_farther_than_the_threshold(threshold: int, expected: list[str]) -> None:
    assert gone(planned(far(), threshold)) == expected


def test_near_consumers_go_on_taking_the_tensor_itself() -> None:
    plan = planned(far(op("near", "s")))

    assert groups(plan) == [["c"]]


@pytest.mark.parametrize("shape", [None, (), (8,)])
def test_tensors_of_rank_0_and_1_and_of_unknown_rank_stay(shape: object) -> None:
    assert gone(planned(far(source=op("s", "l00", shape=shape)))) == []


@pytest.mark.parametrize("dtype", ["resource", "variant", "string"])
def test_what_is_no_numbers_stays(dtype: str) -> None:
    assert gone(planned(far(source=op("s", "l00", dtype=dtype)))) == []


@pytest.mark.parametrize(
    "kind", ["Const", "ReadVariableOp", "VariableV2", "RandomUniform", "HorovodAllreduce", "ApplyAdam"]
)
def test_types_that_are_left_alone_give_nothing_away(kind: str) -> None:
    assert gone(planned(far(source=op("s", "l00", kind=kind)))) == []


@pytest.mark.parametrize("kind", ["AssignSub", "HorovodAllreduce", "ResourceGather", "QueueEnqueueV2"])
def test_types_that_are_left_alone_take_nothing_back(kind: str) -> None:
    built = chain(12, op("s", "l00"), op("c", "s", "l06", kind=kind))

    assert gone(planned(built)) == []


def test_filters_of_outputs_look_at_the_source() -> None:
    filters = Filters.of(excl_output_by_scopes={"s"})

    assert gone(planned(far(), filters=filters)) == []
    assert gone(planned(far(), filters=Filters.of(excl_output_by_scopes={"c"}))) == ["s:0"]


def test_filters_of_inputs_look_at_the_consumer() -> None:
    assert gone(planned(far(), filters=Filters.of(excl_input_by_scopes={"c"}))) == []
    assert gone(planned(far(), filters=Filters.of(incl_input_by_scopes={"c"}))) == ["s:0"]


def test_a_filter_that_matches_nothing_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="No operations were found with scope nowhere"):
        planned(far(), filters=Filters.of(excl_output_by_scopes={"nowhere"}))


def test_tensors_below_min_bytes_stay() -> None:
    assert gone(planned(far(), min_bytes=129)) == []
    assert gone(planned(far(), min_bytes=128)) == ["s:0"]


def test_an_unknown_first_dimension_is_the_batch_size() -> None:
    built = far(source=op("s", "l00", shape=(None, 8)))

    assert planned(built, batch_size=100).nbytes_out == 100 * 8 * 4
    assert planned(built).nbytes_out == 8 * 4


def test_ops_of_the_host_neither_give_nor_take() -> None:
    rule = device_rule()

    assert gone(planned(far(source=op("s", "l00", device="/cpu:0")), is_device_op=rule)) == []
    assert gone(planned(far(source=op("s", "l00", device="/cpu:0")))) == ["s:0"]


def test_inactive_ops_neither_give_nor_take() -> None:
    norm = op("s", "l00", kind="FusedBatchNorm", is_training=False)

    assert gone(planned(far(source=norm))) == []
    assert gone(planned(far(source=norm), is_training=False)) == ["s:0"]


def test_each_output_is_looked_at_by_itself() -> None:
    built = chain(12, op("s", "l00", n=3), op("near", "s:0"), op("c", "s:2", "l06"))

    assert gone(planned(built)) == ["s:2"]


def test_a_larger_threshold_moves_no_more_bytes() -> None:
    moved = [planned(hourglass(12), threshold).nbytes_out for threshold in range(1, 26)]

    assert moved == sorted(moved, reverse=True)
    assert moved[0] == 11 * 128
    assert moved[-1] == 0


# -- aliases


def test_what_an_identity_passes_on_is_the_tensor_itself() -> None:
    built = chain(12, op("s", "l00"), op("same", "s", kind="Identity"), op("c", "same", "l06"))
    plan = planned(built)

    assert gone(plan) == ["s:0"]
    assert groups(plan) == [["c"]]


def test_the_identity_of_a_variable_stays() -> None:
    built = chain(12, op("v", kind="VariableV2"), op("read", "v", kind="Identity"), op("c", "read", "l06"))

    assert gone(planned(built)) == []


def test_a_reshape_of_a_variable_stays() -> None:
    built = chain(12, op("v", kind="ReadVariableOp"), op("flat", "v", kind="Reshape"), op("c", "flat", "l06"))

    assert gone(planned(built)) == []


def test_a_reshape_goes_in_its_own_shape() -> None:
    built = chain(12, op("s", "l00"), op("flat", "s", kind="Reshape", shape=(8, 4)), op("c", "flat", "l06"))

    assert gone(planned(built)) == ["flat:0"]


def test_an_identity_that_waits_for_others_is_not_passed_by() -> None:
    built = chain(12, op("s", "l00"), op("barrier", "s", "^l01", kind="Identity"), op("c", "barrier", "l08"))

    assert gone(planned(built)) == ["barrier:0"]


def test_an_identity_on_another_device_is_a_copy() -> None:
    here = op("same", "s", kind="Identity", device="/cpu:0")
    built = chain(12, op("s", "l00"), here, op("c", "same", "l06"))

    assert gone(planned(built, is_device_op=device_rule())) == []


# -- grouping

THREE = [op("c5", "s", "l04"), op("c7", "s", "l06"), op("c10", "s", "l09")]


@pytest.mark.parametrize(
    ("groupby", "expected"),
    [
        (-1, [["c5"], ["c7"], ["c10"]]),
        (0, [["c5"], ["c7"], ["c10"]]),
        (1, [["c5"], ["c7"], ["c10"]]),
        (2, [["c5", "c7"], ["c10"]]),
        (3, [["c5", "c7", "c10"]]),
    ],
)
def test_consumers_near_each_other_share_a_swap_in(groupby: int, expected: list[list[str]]) -> None:
    assert groups(planned(chain(12, op("s", "l00"), *THREE), groupby=groupby)) == expected


def test_a_tensor_leaves_once_however_often_it_comes_back() -> None:
    plan = planned(chain(12, op("s", "l00"), *THREE))

    assert len(plan.swap_outs) == 1
    assert {back.swap_out for back in plan.swap_ins} == {"lms/swapout_s_0"}


def test_without_grouping_even_consumers_of_one_level_have_their_own() -> None:
    built = chain(12, op("s", "l00"), op("c1", "s", "l06"), op("c2", "s", "l06"))

    assert groups(planned(built)) == [["c1"], ["c2"]]
    assert groups(planned(built, groupby=1)) == [["c1", "c2"]]


def test_an_op_that_takes_a_tensor_twice_takes_it_from_one_swap_in() -> None:
    assert groups(planned(chain(12, op("s", "l00"), op("c", "s", "s", "l06")))) == [["c", "c"]]


# -- names


def test_nodes_are_named_after_the_tensor() -> None:
    plan = planned(chain(12, op("net/s", "l00", n=2), op("c", "net/s:1", "l06")))

    assert [out.name for out in plan.swap_outs] == ["lms/swapout_net_s_1"]
    assert [back.name for back in plan.swap_ins] == ["lms/swapin_net_s_1"]


def test_no_name_is_given_twice() -> None:
    both = [op("a/s", "l00"), op("a_s", "l00"), op("c", "a/s", "l06"), op("d", "a_s", "l06")]
    plan = planned(chain(12, *both, op("lms/swapin_a_s_0", "l00")))

    assert [out.name for out in plan.swap_outs] == ["lms/swapout_a_s_0", "lms/swapout_a_s_0_1"]
    assert [back.name for back in plan.swap_ins] == ["lms/swapin_a_s_0_1", "lms/swapin_a_s_0_2"]


# -- the plan as a whole


def test_planning_again_gives_the_same_digest() -> None:
    assert planned(hourglass(9)).digest == planned(hourglass(9)).digest


def test_the_order_in_which_ops_are_told_does_not_matter() -> None:
    ops = list(hourglass(9).ops.values())

    assert planned(graph(*ops)).digest == planned(graph(*reversed(ops))).digest


def test_what_a_plan_added_can_be_taken_away_again() -> None:
    built = hourglass(9)
    plan = planned(built, sync=3)

    assert unedited(edited(built, plan), plan) == built


def test_what_was_taken_through_an_identity_is_again_when_the_plan_is_taken_away() -> None:
    built = chain(12, op("s", "l00"), op("same", "s", kind="Identity"), op("c", "same", "l06"), op("d", "s", "l06"))
    plan = planned(built, groupby=1)

    assert groups(plan) == [["c", "d"]]
    assert unedited(edited(built, plan), plan) == built


def test_a_plan_says_what_it_was_made_with() -> None:
    assert planned(far()).parameters["swapout_threshold"] == 3


def test_nothing_far_is_nothing_planned() -> None:
    assert not planned(chain(12), sync=3)
