"""The pass: swapping changes nothing that is computed, and what it cannot do it refuses in words."""

from __future__ import annotations

import errno
import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from hpcckpt.errors import NoSpaceError, OptionError
from hpcckpt.lms.graph.graph import Graph, InputSlot, Use
from hpcckpt.lms.planner.plan import Copy, Plan, SwapIn, SwapOut
from hpcckpt.lms.runtime import native_engine
from tests.support.lms import native as lms_native
from tests.support.lms.native import Planned, same

ROWS = tf.random.stateless_normal([32, 16], [1, 2])


@pytest.fixture(autouse=True)
def tier(tmp_path: Path) -> Iterator[None]:
    """A file tier that takes everything, and at the end nothing left over."""
    native_engine.configure(native_engine.TierConfig("file", tmp_path, min_bytes=1))
    native_engine.reset_stats()
    yield
    native_engine.hinder()
    native_engine.disarm()
    gc.collect()  # errors hold frames that hold handles
    assert native_engine.wait_until_idle()
    file = native_engine.stats().file
    assert file is not None
    assert file.used == 0


class Net(tf.Module):
    """Three layers and a step of training."""

    def __init__(self) -> None:
        self.kernels = [tf.Variable(tf.random.stateless_normal([16, 16], [3, number])) for number in range(3)]

    def loss(self, x: Any) -> Any:
        for kernel in self.kernels:
            x = tf.nn.relu(tf.matmul(x, kernel))
        return tf.reduce_mean(x * x)

    def train(self, x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = self.loss(x)
        for kernel, gradient in zip(self.kernels, tape.gradient(loss, self.kernels), strict=True):
            kernel.assign_sub(0.1 * gradient)
        return loss


def trained(n_steps: int = 3, change: Callable[[Net], None] = lambda net: None) -> Any:
    """Train a new net in a new function, and return losses and weights."""
    net = Net()
    change(net)
    step = tf.function(net.train)
    return [step(ROWS) for _ in range(n_steps)], [kernel.numpy() for kernel in net.kernels]


def test_swapped_training_is_the_same_bit_for_bit() -> None:
    expected = trained()
    with Planned("train", lms_native.swap_all) as planned:
        assert same(trained(), expected)
    (plan,) = planned.plans
    assert plan is not None
    assert len(plan.swap_outs) >= 3
    assert native_engine.wait_until_idle()
    stats = native_engine.stats()
    assert stats.written_bytes == stats.read_bytes == 3 * plan.nbytes_out


def test_it_asks_once_for_each_function_that_matches() -> None:
    with Planned("train", lambda graph: None) as planned:
        trained()
        trained()
        tf.function(lambda x: x + 1.0)(ROWS)
        _ = ROWS * 2.0
    assert len(planned.asked) == 2
    assert all("train" in info.name and not info.is_session for info in planned.asked)
    assert native_engine.stats().outs == {}


def test_it_does_nothing_when_it_is_not_armed() -> None:
    with Planned("train", lms_native.swap_all) as planned:
        pass
    trained()
    assert planned.asked == []
    assert native_engine.stats().outs == {}


def test_a_function_that_is_ready_stays_swapped() -> None:
    net = Net()
    step = tf.function(net.train)
    with Planned("train", lms_native.swap_all):
        step(ROWS)
    native_engine.reset_stats()
    step(ROWS)
    assert native_engine.stats().bytes_out > 0


def test_what_is_not_ready_can_no_longer_be_asked_about_but_a_new_trace_can() -> None:
    net = Net()
    step = tf.function(net.train)
    step(ROWS)
    with Planned("train", lms_native.swap_all) as planned:
        step(ROWS)
        assert planned.asked == []
        step(ROWS[:8])
        assert len(planned.asked) == 1


def test_functions_within_functions_are_seen_as_one_graph() -> None:
    def nest(net: Net) -> None:
        net.loss = tf.function(net.loss)  # type: ignore[method-assign]

    expected = trained(change=nest)
    with Planned("train", lms_native.swap_all) as planned:
        assert same(trained(change=nest), expected)
    (graph,) = planned.graphs
    assert sum(op.type in ("MatMul", "_FusedMatMul") for op in graph.ops.values()) >= 8


def test_ops_computed_again_give_the_same_bit_for_bit() -> None:
    expected = trained()
    with Planned("train", lambda graph: lms_native.compute_again(graph, "Relu")) as planned:
        assert same(trained(), expected)
    (plan,) = planned.plans
    assert plan is not None
    assert len(plan.copies) == 3


def swap_and_compute_again(graph: Graph) -> Plan:
    """Swap what goes into the first Relu, and compute that once more from what came back."""
    relu = next(op for op in graph.ops.values() if op.type == "Relu")
    far = lms_native.far_uses(graph, 1)[Use(relu.name, 0)]
    back = SwapIn("lms/swapin_0", "lms/swapout_0", (InputSlot("lms/again", 0),))
    again = Copy("lms/again", relu.name, (Use("lms/swapin_0", 0),), tuple((0, slot) for slot in far))
    return Plan((SwapOut("lms/swapout_0", relu.inputs[0], 2048),), (back,), (again,), (("lms/swapout_0", far[0].op),))


def test_what_came_back_can_be_computed_with() -> None:
    expected = trained()
    with Planned("train", swap_and_compute_again):
        assert same(trained(), expected)
    assert native_engine.wait_until_idle()
    assert native_engine.stats().read_bytes == 3 * 2048


def test_what_is_passed_on_as_it_is_counts_as_the_tensor_itself() -> None:
    @tf.function
    def aliased(x: Any) -> Any:
        y = tf.tanh(x, name="kept")
        with tf.control_dependencies([tf.print("", end="")]):
            (same_, _) = tf.identity_n([y, x], name="passed_on")
        return tf.nn.relu(same_, name="taker") + tf.sin(y)

    def swap(graph: Graph) -> Plan:
        out = SwapOut("lms/swapout_0", Use("kept", 0), 2048)
        return Plan((out,), (SwapIn("lms/swapin_0", out.name, (InputSlot("taker", 0),)),))

    expected = aliased(ROWS)
    with Planned("aliased", swap):
        assert same(tf.function(aliased.python_function)(ROWS), expected)
    assert native_engine.stats().bytes_in == 2048


def test_swap_ins_wait_for_what_the_plan_says() -> None:
    def late(graph: Graph) -> Plan:
        plan = lms_native.swap_all(graph)
        last = next(op.name for op in graph.ops.values() if op.type == "Mean")
        return Plan(plan.swap_outs, plan.swap_ins, (), tuple((last, back.name) for back in plan.swap_ins))

    expected = trained()
    with Planned("train", late):
        assert same(trained(), expected)
    assert native_engine.stats().n_hot == 0


def test_how_long_ops_wait_is_counted_by_the_op_that_waits() -> None:
    native_engine.hinder(read_delay_ms=200)  # far more than whatever else an op waits for
    with Planned("train", lms_native.swap_all) as planned:
        trained(1)
    (plan,) = planned.plans
    assert plan is not None
    stats = native_engine.stats()
    assert set(stats.stall_by_op) <= {slot.op for back in plan.swap_ins for slot in back.consumers}
    assert len(stats.stall_by_op) >= 3
    assert all(moved.wait_ns > 200_000_000 for moved in stats.ins.values())
    assert 0 < max(stats.stall_by_op.values()) <= sum(moved.wait_ns for moved in stats.ins.values())


# -- what it sees ----------------------------------------------------------------------------------


def test_shapes_are_known_where_the_inputs_are() -> None:
    with Planned("train", lambda graph: None) as planned:
        trained(1)
    (graph,) = planned.graphs
    relu = next(op for op in graph.ops.values() if op.type == "Relu")
    assert relu.outputs[0].shape == (32, 16)
    read = next(op for op in graph.ops.values() if op.type == "ReadVariableOp")
    assert read.outputs[0].shape == (16, 16)
    assert "CPU:0" in relu.device


def test_a_batch_that_varies_is_told_with_the_size_that_is_given() -> None:
    signature = [tf.TensorSpec([None, 16], tf.float32)]
    for size, expected in ((None, None), (32, 32)):
        with Planned("train", lambda graph: None, batch_size=size) as planned:
            tf.function(Net().train, input_signature=signature)(ROWS)
        relu = next(op for op in planned.graphs[0].ops.values() if op.type == "Relu")
        assert relu.outputs[0].shape == (expected, 16)


def loop(x: Any) -> Any:
    return tf.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, tf.tanh(y)), (0, x))[1] * 2.0


def test_what_is_inside_a_loop_is_told_and_cannot_be_touched() -> None:
    def reach_inside(graph: Graph) -> Plan:
        tanh = next(op for op in graph.ops.values() if op.type == "Tanh")
        assert tanh.frame
        return Plan((SwapOut("lms/swapout_0", Use(tanh.name, 0), 1),))

    with (
        Planned("loop", reach_inside),
        pytest.raises(tf.errors.FailedPreconditionError, match="inside a while loop: leave those out"),
    ):
        tf.function(loop)(ROWS)


def test_swapping_beside_a_loop_changes_nothing() -> None:
    def train(net: Net) -> None:
        plain = net.loss
        net.loss = lambda x: plain(loop(x))  # type: ignore[method-assign]

    expected = trained(change=train)
    with Planned("train", lms_native.swap_all) as planned:
        assert same(trained(change=train), expected)
    assert planned.plans[0]


def test_sessions_are_asked_about_only_if_that_is_wished() -> None:
    def run() -> Any:
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            x = tf.compat.v1.placeholder(tf.float32, [None, 16])
            kernel = tf.constant(np.ones([16, 16], np.float32))
            y = tf.nn.relu(tf.matmul(x, kernel))
            (gradient,) = tf.gradients(y * y, x)
            return session.run(gradient, {x: ROWS.numpy()})

    expected = run()
    with Planned(".", lms_native.swap_all) as planned:
        run()
    assert not any(info.is_session for info in planned.asked)
    with Planned("nothing", lambda graph: lms_native.swap_all(graph, 0), sessions=True) as planned:
        assert same(run(), expected)
    (info,) = planned.asked
    assert info == ("", True)
    assert native_engine.stats().bytes_out > 0


# -- what it refuses -------------------------------------------------------------------------------


def test_what_the_planner_raises_is_what_the_caller_gets() -> None:
    def fail(graph: Graph) -> Plan:
        raise OptionError("no such scope: dense_9")

    with (
        Planned("train", fail),
        pytest.raises(OptionError, match="no such scope: dense_9"),
        native_engine.typed_errors(),
    ):
        trained()
    with Planned("train", fail), pytest.raises(tf.errors.FailedPreconditionError, match="OptionError: no such scope"):
        trained()
    trained()


def relu_of(graph: Graph) -> str:
    return next(op.name for op in graph.ops.values() if op.type == "Relu")


def circle(graph: Graph) -> Plan:
    plan = lms_native.swap_all(graph)
    return Plan(plan.swap_outs, plan.swap_ins, (), ((plan.swap_ins[0].consumers[0].op, plan.swap_outs[0].name),))


def unknown(graph: Graph) -> Plan:
    return Plan(edges=(("nowhere", relu_of(graph)),))


def no_output(graph: Graph) -> Plan:
    return Plan((SwapOut("lms/swapout_0", Use(relu_of(graph), 7), 1),))


def twice(graph: Graph) -> Plan:
    return Plan((SwapOut(relu_of(graph), Use(relu_of(graph), 0), 1),))


def never_left(graph: Graph) -> Plan:
    return Plan((), (SwapIn("lms/swapin_0", "lms/swapout_0", ()),), (), ((relu_of(graph), "lms/swapin_0"),))


def wrong_input(graph: Graph) -> Plan:
    other = next(op.name for op in graph.ops.values() if op.type == "Mean")
    out = SwapOut("lms/swapout_0", Use(relu_of(graph), 0), 1)
    return Plan((out,), (SwapIn("lms/swapin_0", out.name, (InputSlot(other, 0),)),))


def state_again(graph: Graph) -> Plan:
    read = next(op for op in graph.ops.values() if op.is_stateful and op.inputs)
    return Plan(copies=(Copy("lms/again", read.name, read.inputs, ()),))


def wrong_copy(graph: Graph) -> Plan:
    return Plan(copies=(Copy("lms/again", relu_of(graph), (), ()),))


@pytest.mark.parametrize(
    ("planner", "text"),
    [
        (circle, r"the plan makes a circle: \S+( -> \S+)+"),
        (unknown, "names 'nowhere', and the graph has no such op"),
        (no_output, "has no output 7"),
        (twice, "there is one already"),
        (never_left, "brings back 'lms/swapout_0', which the plan does not swap out"),
        (wrong_input, "and the plan takes it for"),
        (state_again, "it cannot be computed twice"),
        (wrong_copy, "has 0 inputs and"),
    ],
)
def test_a_plan_that_does_not_fit_is_refused_in_words(planner: Callable[[Graph], Plan], text: str) -> None:
    expected = trained()
    with Planned("train", planner), pytest.raises(tf.errors.FailedPreconditionError, match=text):
        trained()
    assert same(trained(), expected)


def test_nothing_waits_for_what_may_not_run() -> None:
    @tf.function
    def branching(x: Any, flag: Any) -> Any:
        y = tf.cond(flag, lambda: tf.tanh(x), lambda: tf.sin(x))
        return tf.nn.relu(y) * 2.0

    def wait(graph: Graph) -> Plan:
        first = next(op.name for op in graph.ops.values() if op.type == "Tanh")
        return Plan(edges=((first, relu_of(graph)),))

    with Planned("branching", wait), pytest.raises(tf.errors.FailedPreconditionError, match="does not always run"):
        branching(ROWS, tf.constant(True))


def test_a_match_that_is_no_expression_is_refused() -> None:
    with pytest.raises(OptionError, match=r"'\(' is no regular expression"):
        native_engine.arm("(", lambda graph, info: None)


# -- steps that fail -------------------------------------------------------------------------------


def test_a_step_that_finds_the_tier_full_fails_in_words_and_training_can_go_on(tmp_path: Path) -> None:
    net = Net()
    step = tf.function(net.train)
    before = [kernel.numpy() for kernel in net.kernels]
    text = f"bytes do not fit into the file in {tmp_path}.*name another directory"
    with Planned("train", lms_native.swap_all):
        native_engine.hinder(take=errno.ENOSPC)
        with pytest.raises(NoSpaceError, match=text), native_engine.typed_errors():
            step(ROWS)
        assert native_engine.wait_until_idle()
        assert same([kernel.numpy() for kernel in net.kernels], before)
        native_engine.hinder()
        step(ROWS)


def test_a_step_that_fails_elsewhere_leaves_nothing_in_the_tier() -> None:
    @tf.function
    def failing(x: Any, limit: Any) -> Any:
        y = tf.nn.relu(tf.matmul(x, x, transpose_b=True), name="kept")
        with tf.control_dependencies([tf.debugging.assert_less(tf.reduce_sum(y), limit)]):
            return tf.linalg.matmul(tf.identity(y), y)

    def swap(graph: Graph) -> Plan:
        slots = graph.consumers[Use("kept", 0)]
        last = next(slot for slot in slots if graph.ops[slot.op].type == "MatMul")
        out = SwapOut("lms/swapout_0", Use("kept", 0), 4096)
        return Plan((out,), (SwapIn("lms/swapin_0", out.name, (last,)),))

    expected = failing(ROWS, 1e30)
    with Planned("failing", swap):
        step = tf.function(failing.python_function)
        for _ in range(3):
            with pytest.raises(tf.errors.InvalidArgumentError):
                step(ROWS, -1.0)
            assert native_engine.wait_until_idle()
        assert same(step(ROWS, 1e30), expected)
