"""Models that the tests convert; other tests name this module as `--model`."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

layers = keras.layers
IS_KERAS_3 = keras.__version__.startswith("3")


def sequential(rate: float = 0.1) -> Any:
    """Return a Sequential model with BatchNorm and Dropout, compiled with Adam."""
    model = bare()
    model.compile(
        keras.optimizers.Adam(rate), keras.losses.MeanSquaredError(), metrics=[keras.metrics.MeanAbsoluteError()]
    )
    return model


def bare() -> Any:
    """Return the same without an optimizer."""
    return keras.Sequential([
        layers.Input((8, 8, 1)), layers.Conv2D(4, 3), layers.BatchNormalization(), layers.Flatten(),
        layers.Dropout(0.1), layers.Dense(5, activation="relu"), layers.Dense(3),
    ])  # fmt: skip


def functional(rate: float = 0.1) -> Any:
    """Return a functional model with a branch, BatchNorm and a layer that the user named; SGD with momentum."""
    entry = keras.Input((8, 8, 1))
    flat = layers.Flatten()(entry)
    left = layers.BatchNormalization()(layers.Dense(6)(flat))
    right = layers.Dense(6, name="chosen", use_bias=False)(flat)
    model = keras.Model(entry, layers.Dense(3)(layers.Add()([left, right])))
    model.compile(keras.optimizers.SGD(rate, momentum=0.9), keras.losses.MeanSquaredError())
    return model


def nested() -> Any:
    """Return a model in a model."""
    inner = keras.Sequential([layers.Input((4,)), layers.Dense(4), layers.Dense(4, name="chosen")])
    entry = keras.Input((4,))
    model = keras.Model(entry, layers.Dense(2)(inner(entry)))
    model.compile("adam", "mse")
    return model


def trained(build: Any) -> Any:
    """Return a model after a few steps, with a learning rate that no script would have."""
    keras.utils.set_random_seed(4)
    model = build(0.003)
    rows = np.random.default_rng(0).normal(size=(12, 8, 8, 1)).astype("float32")
    model.fit(rows, rows[:, 0, :3, 0], batch_size=4, verbose=0)
    model.optimizer.learning_rate.assign(0.000123)
    return model


MODELS = {"sequential": sequential, "functional": functional}


class Subclassed(keras.Model):
    """A model that is a class of the user's."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = layers.Dense(4), layers.Dense(2)

    def call(self, inputs: Any) -> Any:
        """Apply both."""
        return self.second(self.first(inputs))


def subclassed() -> Any:
    """Return a built `Subclassed`."""
    model = Subclassed()
    model(np.ones((1, 3), "float32"))
    return model


class Configured(keras.Model):
    """A model that is a class of the user's, and can say how to make it again."""

    def __init__(self, units: int, **more: Any) -> None:
        super().__init__(**more)
        self.units = units
        self.only = layers.Dense(units)

    def call(self, inputs: Any) -> Any:
        """Apply it."""
        return self.only(inputs)

    def get_config(self) -> dict[str, Any]:
        """Return what to make it with."""
        return {"units": self.units}


class Scaled(layers.Layer):
    """A layer of the user's."""

    def build(self, shape: Any) -> None:
        """Make its weight."""
        self.scale = self.add_weight(name="scale", shape=(shape[-1],), initializer="ones")

    def call(self, inputs: Any) -> Any:
        """Multiply."""
        return inputs * self.scale
