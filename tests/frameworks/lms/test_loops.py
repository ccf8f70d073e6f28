"""Steps with while loops and conditions: planned around them, with one rule of what waits for what, and never ended."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

import hpcckpt.lms.planner.cost_planner
from hpcckpt.errors import MemoryBudgetError, StateError
from hpcckpt.lms import LMS
from hpcckpt.lms.graph.graph import Graph, Op
from hpcckpt.lms.graph.graph_context import GraphContext
from hpcckpt.lms.graph.levels import awaited
from hpcckpt.lms.graph.liveness import liveness
from hpcckpt.lms.planner.acyclic_edges import Ordering
from hpcckpt.lms.planner.cost_planner import plan_by_cost
from hpcckpt.lms.planner.edited_graph import check, find_cycle
from hpcckpt.lms.planner.op_schedule import Waits, orders
from hpcckpt.lms.planner.swap_timeline import TierBandwidth
from tests.support.lms import models
from tests.support.lms.graphs import graph, op
from tests.support.lms.steps import MIB, WIDE

DISK = TierBandwidth(write=1.2e9, read=0.8e9)
v1 = tf.compat.v1


def loop(name: str, source: str, outside: str, frame: str, *body: Op, last: str = "") -> list[Op]:
    """Make a loop as TensorFlow lowers it, all tensors of one MiB; its body takes `outside` too."""
    inside: Any = {"shape": WIDE, "frame": frame}
    return [
        op(f"{name}/Enter", source, kind="Enter", **inside),
        op(f"{name}/EnterOutside", outside, kind="Enter", **inside),
        op(f"{name}/Merge", f"{name}/Enter", f"{name}/Next", kind="Merge", n=2, **inside),
        op(f"{name}/LoopCond", f"{name}/Merge:1", kind="LoopCond", frame=frame, shape=(), dtype="bool"),
        op(f"{name}/Switch", f"{name}/Merge", f"{name}/LoopCond", kind="Switch", n=2, **inside),
        op(f"{name}/body", f"{name}/Switch:1", f"{name}/EnterOutside", kind="MatMul", **inside),
        *body,
        op(f"{name}/Next", last or f"{name}/body", kind="NextIteration", **inside),
        op(f"{name}/Exit", f"{name}/Switch", kind="Exit", **inside),
    ]


def looping() -> Graph:
    return graph(
        op("x", kind="MatMul", shape=WIDE),
        op("outside", kind="MatMul", shape=WIDE),
        *loop("while", "x", "outside", "while"),
        op("end", "while/Exit", kind="MatMul", shape=WIDE),
    )


def nested() -> Graph:
    inner = loop("outer/inner", "outer/body", "outer/body", "outer/inner")
    return graph(
        op("x", kind="MatMul", shape=WIDE),
        *loop("outer", "x", "x", "outer", *inner, last="outer/inner/Exit"),
        op("end", "outer/Exit", kind="MatMul", shape=WIDE),
    )


@pytest.mark.parametrize("built", [looping(), nested()], ids=["one", "nested"])
def test_orders_of_a_graph_with_loops_are_taken_by_every_check(built: Graph) -> None:
    for order in orders(GraphContext(built), 1):
        assert liveness(built, order).peak > 0
    assert find_cycle(built) == ()
    check(built, plan_by_cost(GraphContext(built), None, DISK))


def test_what_a_loop_takes_from_outside_is_not_put_after_its_end() -> None:
    built = looping()
    order = Waits(built).sorted
    assert order.index("outside") < order.index("while/Exit")
    assert not Ordering(built).add("end", "outside")
    late = graph(*(each for each in built.ops.values() if each.name != "outside"), op("outside", "^end", shape=WIDE))
    assert "outside" in find_cycle(late)


def test_the_way_back_is_the_only_edge_left_out() -> None:
    built = looping()
    waits = awaited(built)
    assert "while/Next" not in waits["while/Merge"]
    assert "while/body" in waits["while/Next"]
    assert {"while/Switch", "while/Next"} == waits["while/Exit"]


def test_a_loops_variable_is_one_tensor_in_memory() -> None:
    built = graph(op("x", kind="MatMul", shape=WIDE), *loop("while", "x", "x", "while"))
    peak = max(liveness(built, order).peak for order in orders(GraphContext(built), 1))
    assert peak // MIB == 3  # x for the body, the variable, and its next value


# -- with TensorFlow


def scaled(budget: Any, **more: Any) -> LMS:
    return LMS(memory_budget=budget, min_bytes=1, **more) if budget else LMS(planner="cost", min_bytes=1, **more)


@pytest.mark.slow
@pytest.mark.parametrize("budget", ["1 GiB", None])
def test_steps_per_execution_trains_on_with_the_cost_planner(budget: Any) -> None:
    plain = models.fit(models.compiled(models.sequential, steps_per_execution=2))
    lms = scaled(budget)
    assert models.fit(models.compiled(models.sequential, steps_per_execution=2), lms) == plain
    assert any("are inside a while loop" in note for note in lms.report().notes)


def recurrent() -> Any:
    layers = models.keras.layers
    front = [layers.Input((models.WIDTH,)), layers.Reshape((4, 4))]
    return models.keras.Sequential([*front, layers.GRU(8, unroll=False), layers.Dense(models.CLASSES)])


@pytest.mark.slow
@pytest.mark.parametrize("budget", ["1 GiB", None])
def test_a_recurrent_layer_is_trained_with_the_cost_planner(budget: Any) -> None:
    plain = models.fit(models.compiled(recurrent))
    assert models.fit(models.compiled(recurrent), scaled(budget)) == plain


def repeated(x: Any) -> Any:
    for _ in tf.range(3):
        x = tf.tanh(x)
    return x


def repeated_twice(x: Any) -> Any:
    for _ in tf.range(2):
        for _ in tf.range(3):
            x = tf.tanh(x)
    return x


def conditional(x: Any) -> Any:
    return tf.tanh(x) if tf.reduce_sum(x) > 0 else tf.sigmoid(x)


def trained(within: Any, lms: LMS | None) -> bytes:
    start = tf.reshape(tf.range(64.0), (8, 8)) / 64.0
    weight = tf.Variable(start)

    @tf.function  # type: ignore[untyped-decorator]
    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.nn.relu(within(tf.matmul(x, weight))))
        gradient = tape.gradient(loss, weight)
        weight.assign_sub(0.1 * gradient)
        return loss

    run = step if lms is None else lms.watch(step)
    for _ in range(3):
        run(start)
    found: bytes = weight.numpy().tobytes()
    return found


@pytest.mark.parametrize("within", [repeated, repeated_twice, conditional])
@pytest.mark.parametrize("budget", ["1 GiB", None])
def test_loops_and_conditions_in_a_function_are_planned_around(within: Any, budget: Any) -> None:
    within = tf.autograph.experimental.do_not_convert(tf.autograph.to_graph(within))
    assert trained(within, scaled(budget)) == trained(within, None)


def test_a_loop_over_the_budget_is_refused_before_the_first_step() -> None:
    weight = tf.Variable(tf.zeros((1024, 1024)))

    @tf.function  # type: ignore[untyped-decorator]
    def step(x: Any) -> Any:
        for _ in tf.range(2):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.matmul(tf.matmul(x, weight), weight))
            weight.assign_add(tape.gradient(loss, weight) + 1.0)
        return loss

    with pytest.raises(MemoryBudgetError, match="operations are inside while loops, which are not swapped"):
        LMS(memory_budget="14 MiB").watch(step)(tf.ones((1024, 1024)))
    assert not weight.numpy().any()


@pytest.mark.parametrize("is_v2", [True, False])
def test_a_session_with_a_loop_is_planned_by_cost(is_v2: bool) -> None:
    was_on = v1.control_flow_v2_enabled()
    (v1.enable_control_flow_v2 if is_v2 else v1.disable_control_flow_v2)()
    try:
        losses = [_session_losses(lms) for lms in (None, scaled(None))]
    finally:
        (v1.enable_control_flow_v2 if was_on else v1.disable_control_flow_v2)()
    assert losses[0] == losses[1]


def _session_losses(lms: LMS | None) -> list[float]:
    with tf.Graph().as_default() as built:
        x = v1.placeholder(tf.float32, [8, 4, 16], name="x")
        weight = v1.get_variable("w", initializer=tf.eye(16))

        def one(at: Any, state: Any) -> Any:
            return at + 1, tf.tanh(tf.matmul(state, weight) + tf.tanh(x)[:, at])

        state = v1.while_loop(lambda at, _: at < 4, one, [0, tf.zeros((8, 16))])[1]
        loss = tf.reduce_mean(tf.square(state))
        train = v1.train.GradientDescentOptimizer(0.1).minimize(loss)
        start = v1.global_variables_initializer()
    if lms is not None:
        lms.batch_size = 8
        lms.run(built)
    with v1.Session(graph=built) as session:
        session.run(start)
        feed = {x: [[[0.5] * 16] * 4] * 8}
        return [float(session.run([loss, train], feed)[0]) for _ in range(3)]


# -- where the planner fails


def test_a_fault_of_the_planner_does_not_end_the_training(monkeypatch: Any) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise StateError("the order has 'b' before 'a', whose output it takes")

    plain = models.fit(models.compiled(models.sequential))
    monkeypatch.setattr(hpcckpt.lms.planner.cost_planner, "problem", fails)
    lms = scaled("1 GiB")
    assert models.fit(models.compiled(models.sequential), lms) == plain
    report = lms.report()
    assert report.mode == "none"
    assert any("could not plan this step" in note and "whose output it takes" in note for note in report.notes)
