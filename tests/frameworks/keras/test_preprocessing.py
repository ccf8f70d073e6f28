"""Layers that are adapted to data give, after a restore, what they gave before the save."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import hpcckpt as hc
import hpcckpt.keras
import hpcckpt.tmci

layers = keras.layers
ROWS = np.random.default_rng(0).normal(5, 3, size=(32, 3)).astype("float32")


def scaled(*, adapted: bool) -> Any:
    """Return a model with a `Normalization`, adapted to `ROWS` or not, and one within a layer and a sub-model."""
    keras.utils.set_random_seed(1)
    inner = keras.Sequential([keras.Input((3,)), layers.Normalization(), layers.Dense(3)])
    wrapped = layers.TimeDistributed(layers.Normalization(axis=-1))
    model = keras.Sequential([
        keras.Input((3,)), layers.Normalization(), inner, layers.Reshape((1, 3)), wrapped, layers.Flatten(),
        layers.Dense(1),
    ])  # fmt: skip
    for layer in (model.layers[0], inner.layers[0], wrapped.layer) if adapted else ():
        layer.adapt(ROWS)
    model.compile("adam", "mse")
    return model


class Unbuilt(keras.Model):
    """A model that ``fit`` builds."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.dense = layers.Normalization(), layers.Dense(1)

    def call(self, inputs: Any) -> Any:
        """Scale, and apply the dense layer."""
        return self.dense(self.scale(inputs))


def unbuilt(*, adapted: bool) -> Any:
    """Return an `Unbuilt`, its `Normalization` adapted to `ROWS` or not."""
    keras.utils.set_random_seed(1)
    model = Unbuilt()
    if adapted:
        model.scale.adapt(ROWS)
    model.compile("adam", "mse")
    return model


def by_checkpointer(model: Any, run_dir: Path) -> None:
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.restore({"model": model})


def by_load_weights(model: Any, run_dir: Path) -> None:
    hc.keras.load_weights(model, run_dir)


def by_tmci(model: Any, run_dir: Path) -> None:
    hc.tmci.load_weights(model, "rankfile", {"path": str(run_dir)})


@pytest.mark.parametrize("restore", [by_checkpointer, by_load_weights, by_tmci])
def test_a_restored_model_normalizes_as_it_did(restore: Callable[[Any, Path], None], run_dir: Path) -> None:
    model, other = scaled(adapted=True), scaled(adapted=False)
    other.predict(ROWS, verbose=0)  # what was compiled before the restore knows the old values
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(1, {"model": model}).result()
    restore(other, run_dir)
    assert np.array_equal(other(ROWS), model(ROWS))
    assert np.array_equal(other.predict(ROWS, verbose=0), model.predict(ROWS, verbose=0))


def test_a_loaded_model_normalizes_as_it_did(run_dir: Path) -> None:
    model = scaled(adapted=True)
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(1, {"model": model}, objects=hc.keras.describe(model)).result()
    assert np.array_equal(hc.keras.load_model(run_dir)(ROWS), model(ROWS))


@pytest.mark.parametrize("make", [scaled, unbuilt])
def test_a_resumed_fit_normalizes_without_adapting_again(make: Callable[..., Any], run_dir: Path) -> None:
    targets = ROWS[:, :1]

    def fit(model: Any, epochs: int, run: Path) -> Any:
        backup = hc.keras.BackupAndRestore(run, delete_checkpoint=False, verbose=0)
        model.fit(ROWS, targets, epochs=epochs, shuffle=False, verbose=0, callbacks=[backup])
        return model.get_weights()

    straight = fit(make(adapted=True), 2, run_dir / "straight")
    fit(make(adapted=True), 1, run_dir / "killed")
    resumed = fit(make(adapted=False), 2, run_dir / "killed")
    assert all(map(np.array_equal, resumed, straight))
