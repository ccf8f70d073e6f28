"""Sessions that run other fetches than one train op: each of them does what it does without LMS."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from hpcckpt.lms import LMS

v1 = tf.compat.v1
BATCH, WIDTH, DEPTH = 32, 64, 8
ROWS = np.random.default_rng(1).normal(size=(BATCH, WIDTH)).astype(np.float32)
COST = {"planner": "cost", "min_bytes": 1, "verify": False}
CHAINED = {"swapout_threshold": 3, "swapin_ahead": 2, "swapin_groupby": 2, "min_bytes": 1, "serialization": ["3:"]}


def network(x: Any, scope: str) -> Any:
    with v1.variable_scope(scope, use_resource=False, initializer=v1.glorot_uniform_initializer(seed=1)):
        for number in range(DEPTH):
            x = tf.tanh(tf.matmul(x, v1.get_variable(f"w{number}", [WIDTH, WIDTH])))
        return x


def planned(graph: Any, options: dict[str, Any] | None) -> int:
    """Edit a graph, or leave it as it is; return how many control edges it has then."""
    if options is not None:
        lms = LMS(**options)
        lms.batch_size = BATCH
        assert lms.run(graph)
    return sum(len(each.control_inputs) for each in graph.get_operations())


def summed(options: dict[str, Any] | None) -> tuple[list[float], list[float]]:
    """Accumulate the gradients of two batches, apply them, and return the sums between and the weights after."""
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, [None, WIDTH], name="x")
        loss = tf.reduce_mean(network(x, "net") ** 2)
        optimizer = v1.train.GradientDescentOptimizer(0.1)
        pairs = optimizer.compute_gradients(loss)
        sums = [v1.get_variable(f"sum{n}", [WIDTH, WIDTH], trainable=False, use_resource=False) for n in range(DEPTH)]
        clear = tf.group(*(v1.assign(each, tf.zeros_like(each)) for each in sums))
        add = tf.group(*(v1.assign_add(each, gradient) for each, (gradient, _) in zip(sums, pairs, strict=True)))
        train = optimizer.apply_gradients([(each, weight) for each, (_, weight) in zip(sums, pairs, strict=True)])
        size, total = sum(tf.reduce_sum(abs(each)) for each in sums), [tf.reduce_sum(each) for _, each in pairs]
        planned(graph, options)
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            session.run(clear)
            found = []
            for _ in range(2):
                session.run(add, {x: ROWS})
                found.append(float(session.run(size)))
            session.run(train)
            return found, [float(each) for each in session.run(total)]


@pytest.mark.parametrize("options", [COST, CHAINED], ids=["cost", "chained"])
def test_accumulated_gradients_are_those_without_lms(options: dict[str, Any]) -> None:
    assert summed(options) == summed(None)


def trained_apart(options: dict[str, Any] | None) -> list[float]:
    """Train two networks with two optimizers, each fed by its placeholder; return sums of the weights after each."""
    with tf.Graph().as_default() as graph:
        places = {name: v1.placeholder(tf.float32, [None, WIDTH], name=name) for name in "dg"}
        outputs = {name: network(place, name) for name, place in places.items()}
        outputs["g"] += 0.1 * network(places["g"], "shared")
        trains, sums = {}, {}
        for name in "dg":
            own = v1.get_collection(v1.GraphKeys.TRAINABLE_VARIABLES, scope=f"{name}/")
            trains[name] = v1.train.AdamOptimizer(0.01).minimize(tf.reduce_mean(outputs[name] ** 2), var_list=own)
            sums[name] = [tf.reduce_sum(each) for each in own]  # TensorFlow may add these up in another order
        planned(graph, options)
        found = []
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            for name in "dgdd":
                session.run(trains[name], {places[name]: ROWS})
                found += [float(each) for each in session.run(sums["d"] + sums["g"])]
        return found


@pytest.mark.parametrize("options", [COST, CHAINED], ids=["cost", "chained"])
def test_each_of_two_optimizers_updates_its_own_variables_only(options: dict[str, Any]) -> None:
    assert trained_apart(options) == trained_apart(None)


def predicted(options: dict[str, Any] | None) -> tuple[list[float], float]:
    """Predict between steps, without labels; return the losses, and a sum of the predictions."""
    with tf.Graph().as_default() as graph:
        x, y = (v1.placeholder(tf.float32, [None, WIDTH], name=name) for name in "xy")
        hidden = network(x, "net")
        side = hidden
        for _ in range(2 * DEPTH):
            side = tf.tanh(side * 1.1)
        loss = tf.reduce_mean((hidden - tf.exp(y * 0.1)) ** 2)
        train = v1.train.GradientDescentOptimizer(0.1).minimize(loss)
        planned(graph, options)
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            losses = []
            for _ in range(3):
                losses.append(float(session.run([loss, train], {x: ROWS, y: ROWS})[0]))
                before = session.run(side, {x: ROWS})
                np.testing.assert_array_equal(session.run(side, {x: ROWS}), before)
            return losses, float(before.sum())


@pytest.mark.parametrize("options", [COST, CHAINED], ids=["cost", "chained"])
def test_a_prediction_needs_no_labels_and_trains_nothing(options: dict[str, Any]) -> None:
    assert predicted(options) == predicted(None)
