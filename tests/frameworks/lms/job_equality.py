"""Trains each model with and without swapping, oneDNN off, and tells whether losses and weights are equal to the bit.

A separate process: oneDNN is chosen when TensorFlow is loaded. `tests/frameworks/lms/test_equality.py` checks the
outcome.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import warnings
from typing import Any
from unittest import mock

os.environ |= {"TF_ENABLE_ONEDNN_OPTS": "0", "TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": ""}

import keras
import pytest
import tensorflow as tf

from hpcckpt.errors import MemoryBudgetError
from hpcckpt.lms import LMS
from hpcckpt.lms.planner import make_plan
from hpcckpt.lms.runtime import native_engine
from tests.support.lms import models

v1 = tf.compat.v1
DISTANCE = {"swapout_threshold": 2, "swapin_ahead": 1, "swapin_groupby": 0, "min_bytes": 1}


def told(without: str, with_lms: str, lms: LMS) -> dict[str, Any]:
    """Return the outcome of a pair of trainings."""
    report = lms.report()
    moved = sum(each.nbytes for each in report.traffic)
    plan = dict(report.plan)
    return {
        "equal": without == with_lms,
        "mode": report.mode,
        "swaps": plan.get("n_swap_outs", 0),
        "edges": moved,
        "digest": plan.get("digest"),
        "live": native_engine.stats().live_handles if native_engine.wait_until_idle() else -1,
    }


def of_keras(make: Any, *, fit: dict[str, Any] | None = None, **compile_options: Any) -> dict[str, Any]:
    """Train a model of Keras."""
    fit = fit or {}
    without = models.fit(models.compiled(make, **compile_options), **fit)
    lms = LMS(**DISTANCE)
    return told(without, models.fit(models.compiled(make, **compile_options), lms, **fit), lms)


def of_session() -> dict[str, Any]:
    """Train a graph in a session, with Dropout."""
    without = models.train(models.deep(dropout=True))
    lms, graph = LMS(**DISTANCE), models.deep(dropout=True)
    lms.excl_output_by_scopes = {"loss", "accuracy", "dropout"}
    lms.run(graph)
    return told(without, models.train(graph), lms)


def of_sync_mode(mode: int) -> dict[str, Any]:
    """Train a graph in a session in a synchronous mode, its levels serialized."""
    without = models.train(models.deep())
    lms, graph = LMS(**DISTANCE, sync_mode=mode, serialization=["40:60"]), models.deep()
    lms.run(graph)
    return told(without, models.train(graph), lms)


def of_cost(make: Any) -> dict[str, Any]:
    """Train a model of Keras within a budget: the cost planner's swaps, copies and order."""
    without = models.fit(models.compiled(make))
    lms = LMS(memory_budget=_nearest(make), min_bytes=1, verify=False)
    return told(without, models.fit(models.compiled(make), lms), lms)


def _nearest(make: Any) -> int:
    """Return the least budget that can be kept, to the byte: the refusal names it rounded up."""
    with mock.patch.object(make_plan, "refused", wraps=make_plan.refused) as refused, pytest.raises(MemoryBudgetError):
        models.fit(models.compiled(make), LMS(memory_budget=1, min_bytes=1))
    return int(refused.call_args.args[1])


def of_mixed_precision() -> dict[str, Any]:
    """Train with float16 and float32."""
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        return of_keras(models.sequential)
    finally:
        keras.mixed_precision.set_global_policy("float32")


def of_function() -> dict[str, Any]:
    """Train in a loop of one's own, by a tf.function."""

    def train(lms: LMS | None) -> str:
        model = models.compiled(models.skipping)

        @tf.function
        def step(x: Any, y: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(model.loss(y, model(x, training=True)))
            variables = model.trainable_variables
            model.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
            return loss

        step = lms.watch(step) if lms else step
        return models.digest([*(step(x, y) for x, y in models.batches()), *model.get_weights()])

    without, lms = train(None), LMS(**DISTANCE)
    return told(without, train(lms), lms)


def of_estimator() -> dict[str, Any]:
    """Train an Estimator, LMS among its hooks."""

    def model_fn(features: Any, labels: Any, mode: str) -> Any:
        hidden = features["x"]
        for layer in range(5):
            hidden = v1.layers.dense(hidden, 16, tf.tanh, kernel_initializer=v1.glorot_uniform_initializer(seed=layer))
        logits = v1.layers.dense(hidden, 4, kernel_initializer=v1.glorot_uniform_initializer(seed=9))
        loss = v1.losses.sparse_softmax_cross_entropy(labels, logits)
        train_op = v1.train.AdamOptimizer(0.01).minimize(loss, v1.train.get_global_step())
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)

    def input_fn() -> Any:
        x, y = models.rows()
        return tf.data.Dataset.from_tensor_slices(({"x": x}, y)).repeat().batch(8, drop_remainder=True)

    def train(*hooks: Any) -> str:
        config = tf.estimator.RunConfig(tf_random_seed=1, save_summary_steps=None)
        with tempfile.TemporaryDirectory() as directory:
            estimator = tf.estimator.Estimator(model_fn, directory, config=config)
            estimator.train(input_fn, hooks=list(hooks), steps=4)
            values = {name: estimator.get_variable_value(name) for name in sorted(estimator.get_variable_names())}
        return models.digest([*(name.encode() for name in values), *values.values()])

    without, lms = train(), LMS(**DISTANCE)
    return told(without, train(lms), lms)


CASES = {
    "session": of_session,
    "session, sync_mode 1": lambda: of_sync_mode(1),
    "session, sync_mode 2": lambda: of_sync_mode(2),
    "session, sync_mode 3": lambda: of_sync_mode(3),
    "sequential": lambda: of_keras(models.sequential),
    "batchnorm": lambda: of_keras(models.normalized),
    "dropout": lambda: of_keras(models.dropping),
    "skip connections": lambda: of_keras(models.skipping),
    "nested functions": lambda: of_keras(models.Nesting),
    "short last batch": lambda: of_keras(models.skipping, fit={"n": 27}),
    "mixed precision": of_mixed_precision,
    "own loop": of_function,
    "cost planner": lambda: of_cost(models.skipping),
    "cost planner, batchnorm": lambda: of_cost(models.normalized),
}
if hasattr(tf, "estimator"):
    CASES["estimator"] = of_estimator

if __name__ == "__main__":
    tf.get_logger().setLevel("ERROR")
    warnings.simplefilter("ignore")
    print("EQUALITY", json.dumps({name: CASES[name]() for name in sys.argv[1:]}))
