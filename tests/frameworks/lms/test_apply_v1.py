"""Editing a `tf.Graph` from a plan: new nodes, rerouted consumers, control edges, copies; and nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from hpcckpt.errors import CodeError
from hpcckpt.lms.graph.graph import InputSlot, Use
from hpcckpt.lms.planner.node_names import Names
from hpcckpt.lms.planner.plan import Copy, Plan, SwapIn, SwapOut
from hpcckpt.lms.runtime.apply_to_graph import SwapOps, apply, is_edited

pytestmark = pytest.mark.one_case

v1 = tf.compat.v1


def through_host(tensor: Any, name: str, _: Any = None) -> Any:
    with tf.device("/cpu:0"):
        return tf.identity(tensor, name=name)


HOST = SwapOps(through_host, through_host)


@pytest.fixture
def graph() -> Any:
    """``a -> b -> c -> d``, and ``d`` takes ``a`` too."""
    with tf.Graph().as_default() as graph:
        a = tf.square(v1.placeholder(tf.float32, [2, 3], name="x"), name="a")
        b = tf.nn.relu(a, name="b")
        c = tf.exp(b, name="c")
        tf.add(a, c, name="d")
    return graph


PLAN = Plan(
    (SwapOut("lms/swapout_a_0", Use("a", 0), 24),),
    (SwapIn("lms/swapin_a_0", "lms/swapout_a_0", (InputSlot("d", 0),)),),
    edges=(("b", "lms/swapin_a_0"),),
)


def value(graph: Any, fetch: str = "d:0") -> Any:
    with v1.Session(graph=graph) as session:
        return session.run(fetch, {"x:0": np.arange(6, dtype=np.float32).reshape(2, 3)})


def test_the_far_consumer_reads_the_swap_in_and_the_near_one_the_tensor(graph: Any) -> None:
    apply(graph, PLAN, HOST)
    assert graph.get_operation_by_name("d").inputs[0].name == "lms/swapin_a_0:0"
    assert graph.get_operation_by_name("b").inputs[0].name == "a:0"
    assert graph.get_operation_by_name("lms/swapin_a_0").inputs[0].name == "lms/swapout_a_0:0"


def test_a_swap_in_waits_for_its_trigger(graph: Any) -> None:
    apply(graph, PLAN, HOST)
    assert [op.name for op in graph.get_operation_by_name("lms/swapin_a_0").control_inputs] == ["b"]


def test_the_result_is_the_same_to_the_bit(graph: Any) -> None:
    before = value(graph)
    with tf.Graph().as_default() as other:
        tf.import_graph_def(graph.as_graph_def(), name="")
    apply(other, PLAN, HOST)
    assert value(other).tobytes() == before.tobytes()


def test_new_nodes_are_kept_from_the_optimizer_and_lie_on_the_host(graph: Any) -> None:
    added = apply(graph, PLAN, HOST)
    assert {op.name for op in added} == {"lms/swapout_a_0", "lms/swapin_a_0"}
    assert all(op.get_attr("_grappler_do_not_remove") for op in added)
    assert {op.device for op in added} == {"/device:CPU:0"}


def test_shapes_are_told_to_consumers(graph: Any) -> None:
    apply(graph, PLAN, HOST)
    assert graph.get_tensor_by_name("lms/swapin_a_0:0").shape == [2, 3]


def test_an_op_that_is_computed_again_is_a_copy_with_its_attributes(graph: Any) -> None:
    copy = Copy("lms/copy_b", "b", (Use("lms/swapin_a_0", 0),), ((0, InputSlot("d", 1)),))
    before = value(graph)
    with tf.Graph().as_default() as other:
        tf.import_graph_def(graph.as_graph_def(), name="")
    apply(other, Plan(PLAN.swap_outs, PLAN.swap_ins, (copy,)), HOST)
    made = other.get_operation_by_name("lms/copy_b")
    assert (made.type, made.inputs[0].name) == ("Relu", "lms/swapin_a_0:0")
    assert other.get_operation_by_name("d").inputs[1].name == "lms/copy_b:0"
    x = np.arange(6, dtype=np.float32).reshape(2, 3) ** 2
    np.testing.assert_array_equal(value(other), x + x)
    assert value(other).tobytes() != before.tobytes()


def test_everything_but_the_new_nodes_and_the_rerouted_inputs_stays(graph: Any) -> None:
    before = {node.name: node for node in graph.as_graph_def().node}
    apply(graph, PLAN, HOST)
    after = {node.name: node for node in graph.as_graph_def().node if not node.name.startswith("lms/")}
    after["d"].input[0] = "a"
    assert after == before


def test_a_graph_that_was_edited_is_known(graph: Any) -> None:
    assert not is_edited(graph)
    apply(graph, PLAN, HOST)
    assert is_edited(graph)


def test_a_finalized_graph_is_refused_with_the_remedy(graph: Any) -> None:
    graph.finalize()
    with pytest.raises(CodeError, match=r"finalized.*call lms.run\(graph\) before the session is made"):
        apply(graph, PLAN, HOST)


def test_the_same_plan_twice_is_refused(graph: Any) -> None:
    apply(graph, PLAN, HOST)
    with pytest.raises(CodeError, match="'lms/swapin_a_0' already: LMS edits a graph once"):
        apply(graph, PLAN, HOST)


def test_a_name_scope_of_the_caller_does_not_change_names(graph: Any) -> None:
    with graph.as_default(), tf.name_scope("train"):
        apply(graph, PLAN, HOST)
    assert graph.get_operation_by_name("d").inputs[0].name == "lms/swapin_a_0:0"


@pytest.mark.parametrize("name", ["lms/swapin_a_0", "LMS/SwapIn_A_0"])
def test_a_name_that_is_taken_leaves_the_graph_as_it_is(graph: Any, name: str) -> None:
    with graph.as_default():
        tf.constant(1, name=name)
    before = graph.as_graph_def()
    with pytest.raises(CodeError, match="already"):
        apply(graph, PLAN, HOST)
    assert graph.as_graph_def() == before
    assert not is_edited(graph)


def test_names_that_differ_only_in_case_are_one_name() -> None:
    names = Names(["lms/SWAPOUT_a_0"])
    assert [names.swap_out(Use(name, 0)) for name in ("a", "A")] == ["lms/swapout_a_0_1", "lms/swapout_A_0_2"]
