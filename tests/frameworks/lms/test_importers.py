"""Graphs as TensorFlow has them: ops, shapes, control edges, loops; from a `tf.Graph`, a function, a GraphDef."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import tensorflow as tf

from hpcckpt.errors import OptionError
from hpcckpt.lms.graph.graph import Graph, Output, Use
from hpcckpt.lms.graph.levels import sort
from hpcckpt.lms.graph.tf_import import from_graph, from_graph_def, nbytes_learned
from hpcckpt.lms.graph.while_frames import frames
from tests.support.lms.graphs import op

pytestmark = pytest.mark.one_case

v1 = tf.compat.v1


def built(make: Any) -> tf.Graph:
    graph = tf.Graph()
    with graph.as_default():
        make()
    return graph


def dense() -> None:
    x = v1.placeholder(tf.float32, [None, 8], name="x")
    with tf.device("/device:CPU:0"):
        w = v1.get_variable("w", [8, 4], use_resource=True)
    y = tf.matmul(x, w, name="y")
    with tf.control_dependencies([v1.assign(w, w * 2.0, name="double").op]):
        tf.nn.relu(y, name="z")


def test_ops_have_their_inputs_shapes_and_devices() -> None:
    graph = from_graph(built(dense))
    y = graph.ops["y"]

    assert y.type == "MatMul"
    assert y.inputs[0] == Use("x", 0)
    assert y.outputs == (Output("float32", (None, 4)),)
    assert graph.ops["w"].device == "/device:CPU:0"
    assert graph.ops["w"].outputs[0].dtype == "resource"


def test_control_edges_are_sorted_and_apart_from_inputs() -> None:
    graph = from_graph(built(dense))

    assert graph.ops["z"].inputs == (Use("y", 0),)
    assert graph.ops["z"].controls == ("double",)


def test_state_is_known() -> None:
    graph = from_graph(built(dense))

    assert graph.ops["double"].is_stateful
    assert not graph.ops["y"].is_stateful


def test_references_have_the_size_of_what_they_refer_to() -> None:
    graph = from_graph(built(lambda: v1.get_variable("v", [8, 4], use_resource=False)))

    assert graph.ops["v"].type == "VariableV2"
    assert graph.ops["v"].outputs == (Output("float32", (8, 4)),)


def test_unknown_ranks_stay_unknown() -> None:
    graph = from_graph(built(lambda: v1.placeholder(tf.float32, name="x")))

    assert graph.ops["x"].outputs[0].shape is None


def test_batch_normalizations_say_if_they_train() -> None:
    def norm() -> None:
        x = v1.placeholder(tf.float32, [2, 4, 4, 3])
        ones = tf.ones([3])
        v1.nn.fused_batch_norm(x, ones, ones, ones, ones, is_training=False, name="norm")
        tf.nn.relu(x, name="relu")

    graph = from_graph(built(norm))

    assert graph.ops["norm"].is_training is False
    assert graph.ops["relu"].is_training is None


def test_the_graph_of_a_function_is_read_too() -> None:
    @tf.function
    def double(x: Any) -> Any:
        return tf.add(x, x, name="sum")

    graph = from_graph(double.get_concrete_function(tf.TensorSpec([3, 2], tf.float16)).graph)

    assert graph.ops["sum"].outputs == (Output("float16", (3, 2)),)


def loops() -> None:
    def body(i: Any, x: Any) -> Any:
        inner = v1.while_loop(lambda j, _: j < 2, lambda j, y: (j + 1, y * 2.0), [0, x], name="inner")
        return i + 1, inner[1]

    x = v1.placeholder(tf.float32, [4, 4], name="x")
    after = v1.while_loop(lambda i, _: i < 3, body, [0, x], name="outer")[1]
    tf.nn.relu(after, name="after")


@pytest.fixture
def control_flow_v1() -> Any:
    was_on = v1.control_flow_v2_enabled()
    v1.disable_control_flow_v2()
    yield
    if was_on:
        v1.enable_control_flow_v2()


@pytest.mark.usefixtures("control_flow_v1")
def test_ops_of_loops_know_their_frames() -> None:
    graph = from_graph(built(loops))
    of = {op.frame for op in graph.ops.values()}

    assert graph.ops["x"].frame == graph.ops["after"].frame == ""
    assert of == {"", "outer/while_context", "outer/while_context/outer/inner/while_context"}
    assert graph.ops["outer/Const"].frame == ""
    assert graph.ops["outer/Less/y"].frame == graph.ops["outer/Exit"].frame == "outer/while_context"
    assert graph.ops["outer/inner/mul"].frame.endswith("inner/while_context")
    assert sort(graph)["after"] > sort(graph)["x"]


def test_a_graph_without_loops_has_no_frames() -> None:
    assert {op.frame for op in from_graph(built(dense)).ops.values()} == {""}


def test_frames_end_where_loops_do() -> None:
    ops = [
        op("a"),
        op("enter", "a", kind="Enter"),
        op("merge", "enter", "next", kind="Merge", n=2),
        op("switch", "merge", "merge", kind="Switch", n=2),
        op("pivot", "^switch", kind="Const"),
        op("next", "switch:1", "pivot", kind="NextIteration"),
        op("exit", "switch", kind="Exit"),
        op("b", "exit", "a"),
    ]
    found = frames({each.name: each for each in ops}, {"enter": "loop"})

    assert {name for name, frame in found.items() if frame == "loop"} == {
        "enter", "merge", "switch", "pivot", "next", "exit",
    }  # fmt: skip
    assert found["a"] == found["b"] == ""


# -- GraphDefs


def test_a_graph_def_is_the_graph_that_it_is_of() -> None:
    """But for devices: TensorFlow sets those of ops that are colocated when it imports."""
    graph = built(dense)

    assert nowhere(from_graph_def(graph.as_graph_def())) == nowhere(from_graph(graph))


def nowhere(graph: Graph) -> Graph:
    return Graph.of(replace(op, device="") for op in graph.ops.values())


def test_a_graph_def_of_an_op_that_is_not_loaded_is_refused() -> None:
    graph_def = built(dense).as_graph_def()
    graph_def.node[0].op = "NoSuchOp"

    with pytest.raises(OptionError, match=r"TensorFlow cannot import it: .*NoSuchOp"):
        from_graph_def(graph_def)


def test_it_goes_to_json_and_back() -> None:
    graph = from_graph(built(dense))

    assert Graph.from_json(graph.to_json()) == graph


def test_the_size_of_what_is_learned_is_that_of_the_trainable_variables() -> None:
    def two() -> None:
        v1.get_variable("w", [8, 4], use_resource=True)
        v1.get_variable("old", [2, 2], use_resource=False)
        v1.get_variable("step", [100], trainable=False)

    assert nbytes_learned(built(two)) == (32 + 4) * 4
