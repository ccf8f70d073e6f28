"""Models that the tests build, often more than once in a process."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from hpcckpt.keras import stateless

layers = keras.layers
IS_KERAS_3 = keras.__version__.startswith("3")


def lenet5(optimizer: Any = "adam") -> Any:
    """Return the example's network: 8 weights."""
    model = keras.Sequential([
        layers.Input((28, 28, 1)),
        layers.Conv2D(2, 5), layers.MaxPooling2D(2), layers.Conv2D(3, 5), layers.MaxPooling2D(2),
        layers.Flatten(), layers.Dense(8), layers.Dense(10),
    ])  # fmt: skip
    model.compile(optimizer, "mse")
    return model


def small(optimizer: Any = "adam", seed: int = 1) -> Any:
    """Return a net of two dense layers with BatchNorm between them, always with the same first weights."""
    keras.utils.set_random_seed(seed)
    model = keras.Sequential([
        layers.Input((4,)), layers.Dense(3), layers.BatchNormalization(), layers.Dense(1),
    ])  # fmt: skip
    model.compile(optimizer, "mse")
    return model


def nested() -> Any:
    """Return a functional model with a nested Sequential, a shared layer, and names that the user chose."""
    block = keras.Sequential([layers.Input((4,)), layers.Dense(4), layers.Dense(4, name="chosen")])
    shared = layers.Dense(4)
    entry = keras.Input((4,))
    middle = shared(shared(block(entry)))
    return keras.Model(entry, layers.Dense(2)(middle))


class Recurrent(keras.Model):
    """A subclassed model: layers in a list, wrapped layers, a bare weight, a metric."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = [layers.Dense(2), layers.Dense(2)]
        self.both = layers.Bidirectional(layers.LSTM(2))
        self.attention = layers.MultiHeadAttention(2, 2)
        self.seen = keras.metrics.Mean()
        self.scale = self.add_weight(name="scale", shape=(), initializer="ones")

    def call(self, inputs: Any) -> Any:
        """Use everything once."""
        return self.stack[1](self.stack[0](self.both(self.attention(inputs, inputs)))) * self.scale


def recurrent() -> Any:
    """Return a built `Recurrent`."""
    model = Recurrent()
    model(np.ones((2, 5, 4), "float32"))
    return model


def rows(count: int = 50) -> tuple[Any, Any]:
    """Return samples that can be learned."""
    x = np.random.default_rng(3).normal(size=(count, 4)).astype("float32")
    return x, x.sum(axis=1, keepdims=True)


def values(model: Any) -> dict[str, Any]:
    """Return copies of all tensors that a checkpoint of the model has, by name."""
    from hpcckpt.state.tree import flatten

    return {name: leaf.read().copy() for name, leaf in flatten({"model": model}).tensors.items()}


def names(model: Any) -> list[str]:
    """Return the names of all tensors that a checkpoint of the model has."""
    return list(values(model))


def assert_equal(left: dict[str, Any], right: dict[str, Any]) -> None:
    """Assert that two states are equal, to the bit."""
    assert left.keys() == right.keys()
    different = [name for name in left if left[name].tobytes() != right[name].tobytes()]
    assert not different


class Killed(Exception):  # noqa: N818 - it is no error
    """Takes the place of SIGKILL."""


@stateless
class KillAt(keras.callbacks.Callback):
    """Ends a run from outside, after a number of batches."""

    def __init__(self, batches: int) -> None:
        super().__init__()
        self.batches = batches

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.batches -= 1
        if self.batches == 0:
            raise Killed
