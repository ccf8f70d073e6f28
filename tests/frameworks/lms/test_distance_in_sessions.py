"""Plans by distance in a session: conditions, loops, batch normalization; the same losses, and a way back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from hpcckpt.lms.graph.graph_context import GraphContext
from hpcckpt.lms.graph.tf_import import from_graph
from hpcckpt.lms.planner.distance_planner import plan_by_distance
from hpcckpt.lms.planner.edited_graph import check, unedited
from hpcckpt.lms.planner.plan import Plan
from hpcckpt.lms.runtime.apply_to_graph import SwapOps, apply
from hpcckpt.lms.settings import Parameters

v1 = tf.compat.v1
IDENTITIES = SwapOps(
    lambda tensor, name: tf.identity(tensor, name=name), lambda out, name, _: tf.identity(out, name=name)
)


@pytest.fixture(autouse=True, params=[True, False], ids=["functions", "frames"])
def control_flow(request: Any) -> Iterator[None]:
    """Let conditions and loops be functions, as in TensorFlow 2, or frames and switches."""
    was_on = v1.control_flow_v2_enabled()
    (v1.enable_control_flow_v2 if request.param else v1.disable_control_flow_v2)()
    yield
    (v1.enable_control_flow_v2 if was_on else v1.disable_control_flow_v2)()


def build() -> None:
    """Build two blocks of convolution, normalization and a condition, then a loop; and a step of descent."""
    images = v1.placeholder(tf.float32, [None, 6, 6, 2], name="images")
    is_odd = v1.placeholder(tf.bool, [], name="is_odd")
    found = images
    for index in range(2):
        found = tf.nn.relu(_normalized(_convolved(found, index), index))
        held = found
        found = v1.cond(is_odd, lambda held=held: tf.nn.relu(held * 1.5 + 0.1), lambda held=held: held * 0.5)
    flat = tf.reshape(found, [-1, 6 * 6 * 4])
    weights = _variable("out", [6 * 6 * 4, 3], 7)
    start = tf.matmul(flat, weights)
    looped = v1.while_loop(lambda i, _: i < 3, lambda i, each: (i + 1, tf.tanh(each) + start), [0, start])[1]
    error = tf.reduce_mean(tf.square(looped), name="error")
    v1.train.GradientDescentOptimizer(0.1).minimize(error, name="step")


def _variable(name: str, shape: list[int], seed: int) -> Any:
    values = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
    return v1.get_variable(name, initializer=values, use_resource=True)


def _convolved(x: Any, index: int) -> Any:
    kernel = _variable(f"kernel{index}", [3, 3, x.shape[-1], 4], index)
    return tf.nn.conv2d(x, kernel, 1, "SAME")


def _normalized(x: Any, index: int) -> Any:
    scale = _variable(f"scale{index}", [4], index)
    return v1.nn.fused_batch_norm(x, scale, tf.zeros([4]), is_training=True)[0]


def trained(parameters: Parameters | None) -> tuple[list[float], Plan]:
    """Train three steps, with a plan if one is asked for, and see that the graph can be had back."""
    graph, plan = tf.Graph(), Plan()
    with graph.as_default():
        build()
        if parameters is not None:
            before = from_graph(graph)
            plan = plan_by_distance(GraphContext(before), parameters)
            check(before, plan)
            apply(graph, plan, IDENTITIES)
            assert unedited(from_graph(graph), plan) == before
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            return [_step(session, number) for number in range(3)], plan


def _step(session: Any, number: int) -> float:
    images = np.random.default_rng(number).normal(size=(5, 6, 6, 2))
    return float(session.run(["error:0", "step"], {"images:0": images, "is_odd:0": number % 2 == 1})[0])


@pytest.mark.parametrize(
    "parameters",
    [Parameters(1, 0, 1, 0), Parameters(1, 0, 1, 3), Parameters(5, 20, -2, 1, ("0:",))],
    ids=["async", "sync", "serialized"],
)
def test_losses_are_the_same(parameters: Parameters) -> None:
    """All but to the bit: what waits in between keeps TensorFlow from fusing ops, and fused ones round elsewhere."""
    with_plan, plan = trained(parameters)

    assert len(plan.swap_ins) > 5
    assert with_plan == pytest.approx(trained(None)[0], rel=1e-4)
