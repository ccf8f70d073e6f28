"""TensorFlow's and Keras' own checkpoints, of one set of variables."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import keras
import tensorflow as tf
from _peers import Peer, State, Wait, at_once


@keras.saving.register_keras_serializable("bench")
class Weight(keras.layers.Layer):
    """A layer that is one weight."""

    def __init__(self, size: int, **options: Any) -> None:
        super().__init__(**options)
        self.size = size
        self.kernel = self.add_weight(shape=(size,), initializer="zeros", name="kernel")

    def call(self, inputs: Any) -> Any:
        return inputs

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "size": self.size}


@cache
def _layers(names: tuple[str, ...], sizes: tuple[int, ...]) -> keras.Model:
    layers = [Weight(size, name=name.split("/", maxsplit=1)[0]) for name, size in zip(names, sizes, strict=True)]
    return keras.Sequential([keras.Input((1,)), *layers])


def model_of(state: State) -> keras.Model:
    """Return the model that holds the state: one for all peers."""
    model = _layers(tuple(state), tuple(array.size for array in state.values()))
    for variable, array in zip(variables_of(model).values(), state.values(), strict=True):
        variable.assign(array)
    return model


def variables_of(model: keras.Model) -> dict[str, tf.Variable]:
    """Return the model's TensorFlow variables, by their layers' names."""
    return {f"{layer.name}/kernel": getattr(layer.kernel, "value", layer.kernel) for layer in model.layers}


def peers(state: State, n_ranks: int) -> list[Peer]:
    """Return them."""
    del n_ranks
    model = model_of(state)
    held = {name.replace("/", "_"): variable for name, variable in variables_of(model).items()}
    checkpoint = tf.train.Checkpoint(**held)
    in_background = tf.train.Checkpoint(**held)
    options = tf.train.CheckpointOptions(experimental_enable_async_checkpoint=True)

    def write(path: Path) -> None:
        path.mkdir()
        checkpoint.write(str(path / "ckpt"))

    def begin(path: Path) -> Wait:
        path.mkdir()
        in_background.write(str(path / "ckpt"), options=options)
        return in_background.sync

    def read(path: Path) -> None:
        checkpoint.read(str(path / "ckpt")).assert_consumed()

    def with_ending(path: Path, ending: str) -> str:
        path.mkdir(exist_ok=True)
        return str(path / f"model{ending}")

    return [
        Peer("tf.train.Checkpoint", at_once(write), read, "nothing"),
        Peer("tf.train.Checkpoint, async", begin, read, "nothing", is_async=True),
        Peer(
            "Keras .weights.h5",
            at_once(lambda path: model.save_weights(with_ending(path, ".weights.h5"))),
            lambda path: model.load_weights(with_ending(path, ".weights.h5")),
            "nothing",
        ),
        Peer(
            "Keras .keras",
            at_once(lambda path: model.save(with_ending(path, ".keras"))),
            lambda path: keras.models.load_model(with_ending(path, ".keras")),
            "nothing",
        ),
    ]
