"""Models that Keras builds with their first batch are restored, and saved, as those that were built before."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import hpcckpt as hc
from hpcckpt.errors import StateError
from hpcckpt.keras import BackupAndRestore
from hpcckpt.restoring.reader import open_step
from tests.support.keras.models import assert_equal, rows, values

layers = keras.layers


class Subclassed(keras.Model):
    """A model of a tutorial: layers in ``__init__``, their use in ``call``."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.normal, self.out = layers.Dense(3), layers.BatchNormalization(), layers.Dense(1)

    def call(self, inputs: Any, training: Any = None) -> Any:
        """Use all of them."""
        return self.out(self.normal(self.hidden(inputs), training=training))


class WithLateLayers(keras.Model):
    """A model that makes its layers when it is built."""

    def build(self, input_shape: Any) -> None:
        """Make them."""
        self.hidden, self.out = layers.Dense(int(input_shape[-1])), layers.Dense(1)
        super().build(input_shape)

    def call(self, inputs: Any) -> Any:
        """Use them."""
        return self.out(self.hidden(inputs))


class WithoutCall(keras.Model):
    """A model, as GANs are, that is never called: only its parts are, in ``train_step``."""

    def __init__(self) -> None:
        super().__init__()
        self.part = keras.Sequential([layers.Dense(3), layers.Dense(1)])

    def train_step(self, data: Any) -> Any:
        """Train the part."""
        inputs, targets = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self.part(inputs, training=True) - targets) ** 2)
        weights = self.part.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return {"loss": loss}


class OfTwoInputs(keras.Model):
    """A model whose inputs have names."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.out = layers.Dense(2), layers.Dense(2), layers.Dense(1)

    def call(self, inputs: Any) -> Any:
        """Use both."""
        return self.out(self.left(inputs["left"]) + self.right(inputs["right"]))


def sequential() -> Any:
    return keras.Sequential([layers.Dense(3), layers.BatchNormalization(), layers.Dense(1)])


KINDS: list[Callable[[], Any]] = [sequential, Subclassed, WithLateLayers, WithoutCall]


def arrays() -> dict[str, Any]:
    x, y = rows()
    return {"x": x, "y": y, "batch_size": 5, "shuffle": False}


def pipeline() -> dict[str, Any]:
    return {"x": tf.data.Dataset.from_tensor_slices(rows()).batch(5), "shuffle": False}


def generator() -> dict[str, Any]:
    def batches() -> Iterator[Any]:
        x, y = rows()
        while True:
            yield from ((x[at : at + 5], y[at : at + 5]) for at in range(0, 50, 5))

    return {"x": batches(), "steps_per_epoch": 10, "shuffle": False}


def named() -> dict[str, Any]:
    x, y = rows()
    return {**arrays(), "x": {"left": x[:, :2], "right": x[:, 2:]}, "y": y}


class AtFirstBatch(keras.callbacks.Callback):
    """Reads all tensors of the training when its first batch begins, and maybe ends it after a batch."""

    def __init__(self, stop_after: int = 0) -> None:
        super().__init__()
        self.stop_after = stop_after
        self.values: dict[str, Any] = {}

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.values = self.values or values(self.model)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.stop_after -= 1
        if self.stop_after == 0:
            raise KeyboardInterrupt


def train(make: Callable[[], Any], data: dict[str, Any], run: Path, seed: int, stop_after: int = 0) -> Any:
    """Train an unbuilt model for two epochs; return it, and what it had at the first batch."""
    keras.utils.set_random_seed(seed)
    model, first = make(), AtFirstBatch(stop_after)
    model.compile("adam", "mse", run_eagerly=data.pop("run_eagerly", False))
    backup = BackupAndRestore(run, every_n_batches=4, delete_checkpoint=False, max_to_keep=None, verbose=0)
    try:
        model.fit(**data, epochs=2, verbose=0, callbacks=[backup, first])
    except KeyboardInterrupt:
        backup.close()
    return model, first.values


def saved(run: Path) -> dict[str, Any]:
    """Return the model's tensors of the newest checkpoint."""
    step = open_step(hc.latest_checkpoint(run))
    return {name: step.load(name) for name in step.specs if name.startswith(("model/", "optimizer/"))}


@pytest.mark.parametrize("make", KINDS)
def test_an_unbuilt_model_begins_with_the_weights_that_were_saved(make: Any, tmp_path: Path) -> None:
    train(make, arrays(), tmp_path / "run", 1, stop_after=6)
    was_saved = saved(tmp_path / "run")
    _, at_first_batch = train(make, arrays(), tmp_path / "run", 2)
    assert_equal(at_first_batch, was_saved)


@pytest.mark.slow
@pytest.mark.parametrize("data", [arrays, pipeline, generator])
def test_an_unbuilt_model_that_was_killed_ends_as_if_never_killed(data: Any, tmp_path: Path) -> None:
    straight, _ = train(sequential, data(), tmp_path / "straight", 1)
    train(sequential, data(), tmp_path / "run", 1, stop_after=16)
    resumed, _ = train(sequential, data(), tmp_path / "run", 2)
    assert_equal(values(resumed), values(straight))


def test_an_unbuilt_model_of_named_inputs_begins_with_what_was_saved(tmp_path: Path) -> None:
    train(OfTwoInputs, named(), tmp_path / "run", 1, stop_after=6)
    was_saved = saved(tmp_path / "run")
    _, at_first_batch = train(OfTwoInputs, named(), tmp_path / "run", 2)
    assert_equal(at_first_batch, was_saved)


@pytest.mark.parametrize("make", [Subclassed, WithoutCall])
def test_an_unbuilt_model_that_runs_eagerly_begins_with_what_was_saved(make: Any, tmp_path: Path) -> None:
    train(make, {**arrays(), "run_eagerly": True}, tmp_path / "run", 1, stop_after=6)
    was_saved = saved(tmp_path / "run")
    _, at_first_batch = train(make, {**arrays(), "run_eagerly": True}, tmp_path / "run", 2)
    assert_equal(at_first_batch, was_saved)


def test_a_checkpoint_of_an_unbuilt_model_can_be_loaded_without_its_program(tmp_path: Path) -> None:
    model, _ = train(sequential, arrays(), tmp_path / "run", 1)
    loaded = hc.keras.load_model(tmp_path / "run")
    np.testing.assert_array_equal(loaded.predict(rows()[0], verbose=0), model.predict(rows()[0], verbose=0))


def test_a_finished_run_of_an_unbuilt_model_gives_its_weights_back(tmp_path: Path) -> None:
    model, _ = train(sequential, arrays(), tmp_path / "run", 1)
    again, at_first_batch = train(sequential, arrays(), tmp_path / "run", 2)
    assert not at_first_batch
    assert_equal(values(again), values(model))


class ReadsNumbers(Subclassed):
    """A model that can only run eagerly."""

    def call(self, inputs: Any, training: Any = None) -> Any:
        """Read a number of the batch."""
        return float(inputs.numpy().max() > 0) * super().call(inputs, training=training)


def test_a_model_that_cannot_be_built_before_its_first_batch_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StateError, match=r"training step cannot be traced .*numpy.*; build the model before fit"):
        train(ReadsNumbers, {**arrays(), "run_eagerly": True}, tmp_path / "run", 1)


class Adversarial(keras.Model):
    """Two parts that are built, trained by two optimizers that are not."""

    def __init__(self, *, is_list: bool) -> None:
        super().__init__()
        self.one, self.two = (keras.Sequential([keras.Input((4,)), layers.Dense(1)]) for _ in range(2))
        self.built, self.is_list = True, is_list

    def compile(self, *optimizers: Any) -> None:
        """Take both optimizers, as the GANs of Keras' examples do."""
        super().compile()
        if self.is_list:
            self.optimizers = [*optimizers]
        else:
            self.first, self.second = optimizers

    def train_step(self, data: Any) -> Any:
        """Train each part with its optimizer."""
        inputs, targets = data
        optimizers = self.optimizers if self.is_list else (self.first, self.second)
        for part, optimizer in zip((self.one, self.two), optimizers, strict=True):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((part(inputs) - targets) ** 2)
            weights = part.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return {"loss": loss}


def adversarial(*, is_list: bool, seed: int = 1) -> Any:
    keras.utils.set_random_seed(seed)
    model = Adversarial(is_list=is_list)
    model.compile(keras.optimizers.Adam(0.1), keras.optimizers.SGD(0.1, momentum=0.9))
    return model


@pytest.mark.parametrize("is_list", [False, True])
def test_a_model_with_several_unbuilt_optimizers_is_resumed(is_list: bool, run_dir: Path) -> None:
    def fit(model: Any, epochs: int, directory: Path) -> Any:
        backup = BackupAndRestore(directory, delete_checkpoint=False, verbose=0)
        model.fit(*rows(), batch_size=4, epochs=epochs, shuffle=False, verbose=0, callbacks=[backup])
        return model.get_weights()

    straight = fit(adversarial(is_list=is_list), 2, run_dir / "straight")
    fit(adversarial(is_list=is_list), 1, run_dir / "killed")
    resumed = fit(adversarial(is_list=is_list, seed=5), 2, run_dir / "killed")
    assert all(map(np.array_equal, resumed, straight))
