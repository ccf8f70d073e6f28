"""The planner of TFLMSv2: levels whose ops run one after the other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hpcckpt.errors import OptionError
from hpcckpt.lms.graph.filters import Filters
from hpcckpt.lms.graph.graph import Graph
from hpcckpt.lms.graph.graph_context import GraphContext
from hpcckpt.lms.planner.distance_planner import plan_by_distance
from hpcckpt.lms.settings import Parameters
from tests.support.lms.graphs import chain, gone, graph, op

pytestmark = pytest.mark.one_case

# -- serialization


def wide() -> Graph:
    """Make a graph of four levels: one op, three, three, one."""
    middle = [op(f"m{i}", "l00") for i in range(3)]
    return graph(op("l00"), *middle, *(op(f"n{i}", f"m{i}") for i in range(3)), op("end", "n0", "n1", "n2"))


def chained(built: Graph, *told: int | str, by_size: float = 0, **context: object) -> tuple[tuple[str, str], ...]:
    parameters = Parameters(99, 0, 1, serialization=told, serialization_by_size=by_size)
    return plan_by_distance(GraphContext(built, **context), parameters).edges  # type: ignore[arg-type]


def test_ops_of_a_level_are_chained_by_name() -> None:
    assert chained(wide(), 1) == (("m0", "m1"), ("m1", "m2"))


def test_levels_are_chained_to_each_other() -> None:
    assert chained(wide(), "1:2") == (("m0", "m1"), ("m1", "m2"), ("m2", "n0"), ("n0", "n1"), ("n1", "n2"))


def test_only_edges_that_are_not_there_are_added() -> None:
    assert chained(chain(5), "0:") == ()


def test_levels_up_to_the_first_values_of_variables_are_left() -> None:
    start = [op("v", kind="VarHandleOp", dtype="resource"), op("v/Assign", "v", "m0", kind="AssignVariableOp")]
    built = Graph.of([*wide().ops.values(), *start])

    assert chained(built, "0:") == ()
    assert chained(Graph.of([*wide().ops.values(), start[0]]), 1) != ()


@pytest.mark.parametrize("name", ["net/cond/x", "my_loss"])
def test_branches_and_losses_are_not_chained(name: str) -> None:
    built = Graph.of([*wide().ops.values(), op(name, "l00")])

    assert chained(built, 1) == (("m0", "m1"), ("m1", "m2"))


def test_collectives_and_what_is_filtered_are_not_chained() -> None:
    built = Graph.of([*wide().ops.values(), op("m1b", "l00", kind="HorovodAllreduce")])

    assert chained(built, 1, filters=Filters.of(excl_output_by_scopes={"m2"})) == (("m0", "m1"),)


def test_levels_are_chained_by_size_too() -> None:
    level = 3 * 2 * 128 / (1 << 30)

    assert chained(wide(), by_size=level) == ()
    assert chained(wide(), by_size=level * 0.99) == chained(wide(), "1:2")


def test_distances_are_those_of_the_chained_graph() -> None:
    built = graph(*wide().ops.values(), op("far", "end", "m0"))
    parameters = Parameters(4, 0, 1)

    assert gone(plan_by_distance(GraphContext(built), parameters)) == []
    assert "m0:0" in gone(plan_by_distance(GraphContext(built), replace(parameters, serialization=("1:",))))


def test_what_names_no_levels_is_refused() -> None:
    with pytest.raises(OptionError, match="'a:b' – a level or a slice"):
        chained(wide(), "a:b")
