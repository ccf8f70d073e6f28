"""Small models whose steps swap: graphs for sessions, and models for Keras. Their data follows from a seed."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf

v1 = tf.compat.v1
WIDTH, ROWS, CLASSES = 16, 32, 4


def rows(n: int = ROWS, width: int = WIDTH, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return images and labels."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, width)).astype(np.float32)
    return x, (np.abs(x[:, 0] * 10).astype(np.int64)) % CLASSES


def deep(depth: int = 8, *, batch: int | None = None, dropout: bool = False) -> tf.Graph:
    """Return the graph of a deep network with Adam: ``x``, ``y``, ``loss/mean``, ``train``, ``accuracy/mean``."""
    with tf.Graph().as_default() as graph:
        v1.set_random_seed(1)
        x = v1.placeholder(tf.float32, [batch, WIDTH], name="x")
        y = v1.placeholder(tf.int64, [batch], name="y")
        hidden = x
        for layer in range(depth):
            with v1.variable_scope(f"layer{layer}"):
                hidden = tf.tanh(tf.matmul(hidden, _weight([WIDTH, WIDTH])) + _bias(WIDTH))
        if dropout:
            with v1.name_scope("dropout"):
                hidden = tf.nn.dropout(hidden, rate=0.3, seed=3)
        with v1.variable_scope("head"):
            logits = tf.matmul(hidden, _weight([WIDTH, CLASSES])) + _bias(CLASSES)
        with v1.name_scope("loss"):
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits)
            loss = tf.reduce_mean(losses, name="mean")
        v1.train.AdamOptimizer(0.01).minimize(loss, name="train")
        with v1.name_scope("accuracy"):
            tf.reduce_mean(tf.cast(tf.equal(tf.argmax(logits, 1), y), tf.float32), name="mean")
    return graph


def _weight(shape: list[int]) -> Any:
    return v1.get_variable("w", shape, initializer=v1.truncated_normal_initializer(stddev=0.3, seed=1))


def _bias(width: int) -> Any:
    return v1.get_variable("b", [width], initializer=v1.constant_initializer(0.1))


def looping() -> tf.Graph:
    """Return a graph with a while loop of TensorFlow 1."""
    was_on = v1.control_flow_v2_enabled()
    v1.disable_control_flow_v2()
    try:
        with tf.Graph().as_default() as graph:
            x = v1.placeholder(tf.float32, [8, WIDTH], name="x")
            state = v1.while_loop(lambda i, _: i < 3, lambda i, s: (i + 1, tf.tanh(s)), (0, tf.square(x)))[1]
            far = tf.tanh(tf.tanh(tf.tanh(state)))
            tf.add(tf.square(x, name="near"), far, name="out")
    finally:
        if was_on:
            v1.enable_control_flow_v2()
    return graph


def train(graph: tf.Graph, steps: int = 4, batch: int = 8) -> str:
    """Train in a separate session; return losses and variables, to the bit."""
    seen = []
    with v1.Session(graph=graph) as session:
        with graph.as_default():
            session.run(v1.global_variables_initializer())
        for step in range(steps):
            x, y = rows(batch, seed=step)
            loss, _ = session.run(["loss/mean:0", "train"], {"x:0": x, "y:0": y})
            seen.append(loss)
        with graph.as_default():
            seen += session.run(v1.global_variables())
    return digest(seen)


def digest(values: Any) -> str:
    """Return the SHA-256 of arrays."""
    parts = [value if isinstance(value, bytes) else np.asarray(value).tobytes() for value in values]
    return hashlib.sha256(b"".join(parts)).hexdigest()


# -- Keras

Model = Callable[[], Any]


def sequential() -> Any:
    """Return layers one after the other."""
    layers = [keras.layers.Dense(WIDTH, activation="tanh") for _ in range(6)]
    return keras.Sequential([keras.layers.Input((WIDTH,)), *layers, keras.layers.Dense(CLASSES)])


def convolving() -> Any:
    """Return convolutions whose bias and activation TensorFlow fuses into them."""
    model = [keras.layers.Input((WIDTH,)), keras.layers.Reshape((4, 4, 1))]
    model += [keras.layers.Conv2D(8, 3, padding="same", activation="relu") for _ in range(3)]
    return keras.Sequential([*model, keras.layers.Flatten(), keras.layers.Dense(CLASSES)])


def normalized() -> Any:
    """Return convolutions with BatchNorm."""
    model = [keras.layers.Input((WIDTH,)), keras.layers.Reshape((4, 4, 1))]
    for _ in range(3):
        model += [keras.layers.Conv2D(8, 3, padding="same"), keras.layers.BatchNormalization(), keras.layers.ReLU()]
    return keras.Sequential([*model, keras.layers.Flatten(), keras.layers.Dense(CLASSES)])


def dropping() -> Any:
    """Return layers with Dropout, seeded."""
    layers: list[Any] = []
    for seed in range(3):
        layers += [keras.layers.Dense(WIDTH, activation="tanh"), keras.layers.Dropout(0.3, seed=seed)]
    return keras.Sequential([keras.layers.Input((WIDTH,)), *layers, keras.layers.Dense(CLASSES)])


def skipping() -> Any:
    """Return a network whose early outputs are needed again late."""
    inputs = keras.layers.Input((WIDTH,))
    hidden = [keras.layers.Dense(WIDTH, activation="tanh")(inputs)]
    for _ in range(5):
        hidden.append(keras.layers.Dense(WIDTH, activation="tanh")(hidden[-1]))
    joined = keras.layers.Concatenate()([hidden[0], hidden[2], hidden[-1]])
    return keras.Model(inputs, keras.layers.Dense(CLASSES)(joined))


class Nesting(keras.Model):  # type: ignore[misc]
    """A model that calls functions of TensorFlow within its own."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = [keras.layers.Dense(WIDTH, activation="tanh") for _ in range(5)]
        self.last = keras.layers.Dense(CLASSES)

    def call(self, inputs: Any) -> Any:
        for layer in self.hidden:
            inputs = tf.function(layer)(inputs)
        return tf.function(self.last)(inputs)


def compiled(make: Model, **more: Any) -> Any:
    """Return a model with the same weights each time, ready to train."""
    keras.utils.set_random_seed(1)
    keras.backend.clear_session()
    model = make()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss, **more)
    return model


def fit(model: Any, *callbacks: Any, n: int = ROWS, batch_size: int = 8, epochs: int = 2, **more: Any) -> str:
    """Train; return losses and weights, to the bit."""
    x, y = rows(n)
    done = model.fit(
        x, y, batch_size=batch_size, epochs=epochs, shuffle=False, verbose=0, callbacks=list(callbacks), **more
    )
    return digest([*done.history["loss"], *model.get_weights()])


def batches(n: int = ROWS, batch_size: int = 8) -> Iterator[tuple[Any, Any]]:
    """Return batches of fixed size."""
    x, y = rows(n)
    for start in range(0, n, batch_size):
        yield tf.constant(x[start : start + batch_size]), tf.constant(y[start : start + batch_size])
