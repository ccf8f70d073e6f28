"""Who may give a tensor away and who may take one: the eight filters, devices, collectives, types left alone."""

from __future__ import annotations

import pytest

from hpcckpt.errors import OptionError
from hpcckpt.lms.graph.aliases import Aliases
from hpcckpt.lms.graph.filters import (
    Filters,
    device_rule,
    every_op,
    is_collective,
    is_excluded_type,
    puts_out_references,
)
from hpcckpt.lms.graph.graph import Use
from tests.support.lms.graphs import graph, op

pytestmark = pytest.mark.one_case

GRAPH = graph(op("conv/a", kind="Conv2D"), op("loss/b", "conv/a", kind="Mul"), op("conv/c", "loss/b", kind="Relu"))
SCOPE_FILTERS = [f"{kind}_{side}_by_scopes" for kind in ("excl", "incl") for side in ("output", "input")]
TYPE_FILTERS = [f"{kind}_{side}_by_types" for kind in ("excl", "incl") for side in ("output", "input")]


def taken(filters: Filters, side: str) -> list[str]:
    takes = filters.takes_source if side == "output" else filters.takes_consumer
    return [op.name for op in GRAPH.ops.values() if takes(op)]


@pytest.mark.parametrize(("side", "other"), [("output", "input"), ("input", "output")])
@pytest.mark.parametrize(
    ("kind", "by", "value", "left"),
    [
        ("excl", "scopes", "conv", ["loss/b"]),
        ("excl", "scopes", "conv/a", ["conv/c", "loss/b"]),
        ("excl", "types", "Relu", ["conv/a", "loss/b"]),
        ("incl", "scopes", "loss", ["loss/b"]),
        ("incl", "types", "Conv2D", ["conv/a"]),
    ],
)
def test_a_filter_leaves_what_it_says_on_its_own_side(
    kind: str, by: str, value: str, left: list[str], side: str, other: str
) -> None:
    filters = Filters.of(**{f"{kind}_{side}_by_{by}": {value}})

    assert taken(filters, side) == left
    assert taken(filters, other) == list(GRAPH.ops)


def test_no_filter_leaves_all() -> None:
    assert taken(Filters(), "output") == taken(Filters(), "input") == list(GRAPH.ops)
    assert not Filters()


def test_what_is_both_included_and_excluded_is_excluded() -> None:
    filters = Filters.of(incl_output_by_scopes=["conv"], excl_output_by_types=["Relu"])

    assert taken(filters, "output") == ["conv/a"]


def test_filters_that_include_add_up() -> None:
    filters = Filters.of(incl_output_by_scopes=["loss"], incl_output_by_types=["Relu"])

    assert taken(filters, "output") == ["conv/c", "loss/b"]


@pytest.mark.parametrize("name", SCOPE_FILTERS)
def test_a_scope_that_matches_nothing_is_a_value_error(name: str) -> None:
    with pytest.raises(ValueError, match=rf"No operations were found with scope nowhere\. {name}"):
        Filters.of(**{name: ["conv", "nowhere"]}).check(GRAPH)


def test_a_scope_that_the_optimizer_may_have_removed_is_a_warning() -> None:
    (text,) = Filters.of(excl_output_by_scopes=["nowhere"]).check(GRAPH, is_optimized=True)
    assert text.startswith("No operations were found with scope nowhere. excl_output_by_scopes ")


@pytest.mark.parametrize("name", TYPE_FILTERS)
def test_a_type_that_matches_nothing_is_a_warning_that_lists_what_there_is(name: str) -> None:
    (text,) = Filters.of(**{name: ["Conv2D", "Conv3D"]}).check(GRAPH)
    assert (
        text
        == f"No operations were found with types: Conv3D. {name} has no effect by it; the graph has Conv2D, Mul, Relu"
    )


@pytest.mark.parametrize(
    ("kind", "fused", "types"),
    [
        ("_FusedConv2D", ("BiasAdd", "Relu"), {"Conv2D", "BiasAdd", "Relu"}),
        ("_FusedMatMul", ("BiasAdd",), {"MatMul", "BiasAdd"}),
        ("_FusedBatchNormEx", ("Relu", "AddV2"), {"FusedBatchNormV3", "Relu", "AddV2"}),
        ("_UnaryOpsComposition", ("Sqrt", "Neg"), {"Sqrt", "Neg"}),
    ],
)
def test_what_the_optimizer_fused_is_found_by_each_of_its_types(
    kind: str, fused: tuple[str, ...], types: set[str]
) -> None:
    one = graph(op("a", kind=kind, fused=fused), op("b", kind="Tanh"))
    for type_ in {*types, kind}:
        filters = Filters.of(excl_output_by_types={type_}, incl_input_by_types={type_})
        assert filters.check(one) == []
        assert [op.name for op in one.ops.values() if filters.takes_source(op)] == ["b"]
        assert [op.name for op in one.ops.values() if filters.takes_consumer(op)] == ["a"]


def test_filters_that_match_are_accepted() -> None:
    assert (
        Filters.of(**dict.fromkeys(SCOPE_FILTERS, ("conv",)), **dict.fromkeys(TYPE_FILTERS, ("Mul",))).check(GRAPH)
        == []
    )


@pytest.mark.parametrize("values", ["loss", [1], 5])
def test_what_is_no_collection_of_texts_is_refused(values: object) -> None:
    with pytest.raises(OptionError, match="excl_output_by_scopes"):
        Filters.of(excl_output_by_scopes=values)  # type: ignore[arg-type]


def test_a_filter_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(OptionError, match="there are excl_output_by_scopes, "):
        Filters.of(excl_by_scopes=["loss"])


# -- devices


def test_on_the_device_is_what_is_not_said_to_be_on_a_cpu() -> None:
    is_device_op = device_rule()

    assert is_device_op(op("a"))
    assert is_device_op(op("a", device="/device:GPU:0"))
    assert not is_device_op(op("a", device="/job:worker/cpu:0"))
    assert not is_device_op(op("a", device="/device:CPU:0"))


def test_a_gpu_that_is_named_is_the_only_device() -> None:
    is_device_op = device_rule("/device:GPU:1")

    assert is_device_op(op("a", device="/device:GPU:1"))
    assert not is_device_op(op("a", device="/device:GPU:0"))
    assert not is_device_op(op("a"))


def test_where_memory_and_file_are_the_tiers_every_op_is_on_the_device() -> None:
    assert every_op(op("a", device="/device:CPU:0"))


# -- types


@pytest.mark.parametrize(
    "kind",
    [
        "HorovodAllreduce",
        "CollectiveReduceV2",
        "NcclAllReduce",
        "CollectiveAllReduceV3",
        "HorovodAllgather",
        "XlaAllReduce",
    ],
)
def test_collectives_are_known_and_left_alone(kind: str) -> None:
    assert is_collective(op("a", kind=kind))
    assert is_excluded_type(op("a", kind=kind))


@pytest.mark.parametrize(
    "kind",
    [
        "Const", "Read", "Placeholder", "PlaceholderWithDefault", "VarHandleOp", "VarIsInitializedOp", "VariableShape",
        "ReadVariableOp", "AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp", "ResourceGather",
        "ResourceScatterAdd", "Range", "RandomUniform", "Assign", "AssignAdd", "AssignSub", "QueueDequeueV2",
        "ScatterUpdate", "TruncatedNormal", "Variable", "VariableV2", "_Retval",
    ],
)  # fmt: skip
def test_types_of_the_original_are_left_alone(kind: str) -> None:
    assert is_excluded_type(op("a", kind=kind))


@pytest.mark.parametrize("kind", ["Conv2D", "MatMul", "Relu", "ScatterNd", "Reshape", "AddV2", "Sum", "Select"])
def test_types_that_compute_are_not(kind: str) -> None:
    assert not puts_out_references(op("a", kind=kind))


@pytest.mark.parametrize("kind", ["ApplyAdam", "RefSwitch", "ResourceApplyGradientDescent"])
def test_what_puts_out_a_variable_gives_nothing_away_but_may_take(kind: str) -> None:
    assert puts_out_references(op("a", kind=kind))
    assert not is_excluded_type(op("a", kind=kind))


@pytest.mark.parametrize("kind", ["Assign", "StridedSliceAssign", "ScatterUpdate", "ApplyAdam"])
def test_what_writes_a_reference_variable_puts_out_its_memory(kind: str) -> None:
    assert puts_out_references(op("w/update", "w", kind=kind))


@pytest.mark.parametrize("kind", ["CheckNumerics", "StopGradient", "PreventGradient"])
def test_an_op_that_gradients_or_checks_depend_on_is_not_bypassed(kind: str) -> None:
    found = Aliases(graph(op("a"), op("b", "a", kind=kind), op("c", "b")))
    assert found.root(Use("b", 0)) == Use("a", 0)
    assert found.view(Use("b", 0)) == Use("b", 0)
    assert not found.is_passed_by("b")
