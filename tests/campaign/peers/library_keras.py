"""Keras' ``BackupAndRestore`` in ``fit``: of Keras 2.15 or 3, whichever the environment has; ``double`` keeps two."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import keras
import numpy as np

from tests.campaign.peers.states import N_VALUES, State, state_of

Say = Callable[[int], None]


class Weights(keras.layers.Layer):
    """A layer that holds the state."""

    def __init__(self, names: list[str]) -> None:
        super().__init__()
        self.held = [self.add_weight(shape=(N_VALUES,), initializer="zeros", name=name) for name in names]

    def call(self, inputs: Any) -> Any:
        return inputs


class Model(keras.Model):
    """A model whose steps change nothing: the states come from a callback."""

    def __init__(self, state: State) -> None:
        super().__init__()
        self.weights_layer = Weights(list(state))
        self.built = True
        self.compile(run_eagerly=True)
        self.put(state)

    def call(self, inputs: Any) -> Any:
        return inputs

    def train_step(self, data: Any) -> dict[str, float]:
        del data
        return {"loss": 0.0}

    def put(self, state: State) -> None:
        self.weights_layer.set_weights(list(state.values()))


class Put(keras.callbacks.Callback):
    """Comes before `BackupAndRestore`: the weights of the epoch are there when it saves."""

    def __init__(self, begin: Say) -> None:
        super().__init__()
        self.begin = begin

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.model.put(state_of(epoch + 1))
        self.begin(epoch + 1)


class Saved(keras.callbacks.Callback):
    """Comes after it: it has reported success."""

    def __init__(self, saved: Say) -> None:
        super().__init__()
        self.saved = saved

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.saved(epoch + 1)


class _Stop(Exception):  # noqa: N818 - nothing is wrong
    """Ends `fit` once it is known from where it goes on."""


class Look(keras.callbacks.Callback):
    """Comes after it: what training goes on with."""

    found: tuple[int, State] | None = None

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        names = [f"tensor{number}" for number in range(len(self.model.weights_layer.held))]
        self.found = epoch, dict(zip(names, self.model.weights_layer.get_weights(), strict=True))
        raise _Stop


class Library:
    """A model that is fitted with `BackupAndRestore`."""

    def __init__(self, directory: Path, options: dict[str, Any]) -> None:
        self.directory, self.options = directory, options

    def _fit(self, model: Model, epochs: int, before: list[Any], after: Any) -> None:
        backup = keras.callbacks.BackupAndRestore(str(self.directory), **self.options)
        data = np.zeros((1, 1), np.float32)
        model.fit(data, data, epochs=epochs, verbose=0, callbacks=[*before, backup, after])

    def train(self, state: State, steps: int, begin: Say, saved: Say) -> None:
        """Fit; each epoch ends with a backup."""
        self._fit(Model(state), steps, [Put(begin)], Saved(saved))

    def resume(self, state: State) -> tuple[int, State] | None:
        """Fit again, as a restarted program does, up to the first epoch."""
        look = Look()
        try:
            self._fit(Model(state), 10_000, [], look)
        except _Stop:
            pass
        return look.found if look.found and look.found[0] > 0 else None


def make(directory: Path, variant: str) -> Library:
    """Return it."""
    return Library(directory, {"double_checkpoint": True} if variant == "double" else {})
