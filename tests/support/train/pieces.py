"""What the tests train: data and models so small that a cycle takes a second, and callbacks that end a process."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import hpcckpt as hc
from hpcckpt.train import CustomTrainLoop, export_config
from hpcckpt.train.datasets import share

layers = keras.layers
BATCHES, SIZE = 8, 4
"""Of an epoch of `toy_data`, and of a batch of it, over all ranks."""
KILL = "TRAINPIECES_KILL"


def rows(count: int) -> tuple[Any, Any]:
    """Return rows of what there is to learn."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(count, 6)).astype("float32")
    return x, (np.sin(x.sum(axis=1, keepdims=True)) + 0.1 * rng.normal(size=(count, 1))).astype("float32")


@export_config
def toy_data(size: int = SIZE, is_shuffled: bool = True, kill: str = "", fails_on: int = -1, n_valid: int = 12) -> Any:
    """Return this rank's share: every `size`-th row, in batches of `size` over all ranks."""
    maybe_die(kill)
    rank, ranks = share()
    if rank == fails_on:
        raise ValueError("nothing can be read here")
    x, y = rows(BATCHES * size)
    data = tf.data.Dataset.from_tensor_slices((x[rank::ranks], y[rank::ranks]))
    data = data.shuffle(50, seed=2) if is_shuffled else data
    valid = tf.data.Dataset.from_tensor_slices(tuple(a[rank::ranks] for a in rows(n_valid)))
    return data.batch(size // ranks).prefetch(2), valid.batch(4)


@export_config
class ToyModel(keras.Model):
    """A body that can be frozen, with BatchNorm, and a head; dropout on demand."""

    def __init__(self, dropout: float = 0.3, n_outputs: int = 1, has_norm: bool = True) -> None:
        super().__init__()
        norm = [layers.BatchNormalization()] if has_norm else []
        wide = layers.Dense(8, activation="relu", name="wide")
        self.body = keras.Sequential([wide, *norm, layers.Dropout(dropout)], name="body")
        self.head = layers.Dense(n_outputs, name="head")

    def call(self, inputs: Any, training: Any = None) -> Any:
        """Body, then head."""
        return self.head(self.body(inputs, training=training))


def maybe_die(place: str) -> None:
    """End this process as the kernel would, if the environment says that it is to die at this place."""
    if place and os.environ.get(KILL) == place:
        os.kill(os.getpid(), signal.SIGKILL)


@export_config
@hc.keras.stateless
class DieAt(keras.callbacks.Callback):
    """Ends the process behind some batch of a cycle, ``1:7``, or at the end of its training, ``1:end``."""

    def __init__(self, cycle: int, with_signal: int = signal.SIGKILL) -> None:
        super().__init__()
        self.cycle, self.with_signal = cycle, with_signal

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Maybe now."""
        if KILL in os.environ:
            self._at(str(int(np.asarray(self.model.optimizer.iterations))))

    def on_train_end(self, logs: Any = None) -> None:
        """Maybe now."""
        self._at("end")

    def _at(self, place: str) -> None:
        wanted, _, rank = os.environ.get(KILL, "").partition("@")
        if wanted == f"{self.cycle}:{place}" and rank in {"", os.environ.get("OMPI_COMM_WORLD_RANK", "0")}:
            os.kill(os.getpid(), self.with_signal)


@export_config
@hc.keras.stateless
class EndsOn(keras.callbacks.Callback):
    """Ends the training behind a batch of the first epoch, on one rank."""

    def __init__(self, rank: int, batch: int) -> None:
        super().__init__()
        self.rank, self.batch = rank, batch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Maybe now."""
        if batch == self.batch and os.environ.get("OMPI_COMM_WORLD_RANK") == str(self.rank):
            self.model.stop_training = True


@export_config
class TapeLoop(CustomTrainLoop):
    """A step with its own tape, and its own variable that is saved too."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.n_rows = tf.Variable(0.0)

    def train_step(self, batch: Any) -> dict[str, Any]:
        """Train."""
        x, y = batch
        with tf.GradientTape() as tape:
            predicted = self.model(x, training=True)
            loss = self.loss(y, predicted)
        self.minimize(loss, tape)
        self.n_rows.assign_add(tf.cast(tf.shape(x)[0], tf.float32))
        return {"loss": loss, "rows": self.n_rows, **self.measure(y, predicted)}

    def state(self) -> dict[str, Any]:
        """Save the variable."""
        return {"n_rows": self.n_rows}


def config(**changes: Any) -> list[dict[str, Any]]:
    """Return a configuration of one cycle, with changes; keys whose value is ``...`` are left out."""
    cycle = {
        "datasets": {"toy_data": {}},
        "model": {"ToyModel": {}},
        "loss": {"tf.keras.losses.MeanSquaredError": {}},
        "metrics": ["mae"],
        "optimizer": {"tf.keras.optimizers.Adam": {"learning_rate": 0.02}},
        "train_loop": loop(),
        "checkpoint": {"every_n_batches": 3, "max_to_keep": None},
    }
    return [{name: value for name, value in (cycle | changes).items() if value is not ...}]


def loop(kind: str = "hpcckpt.train.KerasTrainLoop", epochs: int = 2, **options: Any) -> dict[str, Any]:
    """Return a train loop for a configuration."""
    return {kind: {"num_epochs": epochs, **options}}


def two_cycles(kind: str = "hpcckpt.train.KerasTrainLoop", **changes: Any) -> list[dict[str, Any]]:
    """Return two cycles that have all that makes an exact resume hard; the second freezes the body."""
    plateau = {"tf.keras.callbacks.ReduceLROnPlateau": {"monitor": "val_loss", "patience": 1, "min_delta": 1.0}}
    stopping = {"tf.keras.callbacks.EarlyStopping": {"patience": 9, "restore_best_weights": True}}
    both = {"every_n_batches": 3, "batch_norm": "per-rank", "max_to_keep": None}
    first = config(
        train_loop=loop(kind, 3, callbacks=[{"DieAt": {"cycle": 1}}, plateau, stopping]),
        checkpoint=both,
        seed=5,
        **changes,
    )
    second = {
        "datasets": {"toy_data": {"kill": "between"}},
        "optimizer": {"tf.keras.optimizers.SGD": {"learning_rate": 0.05, "momentum": 0.9}},
        "train_loop": loop(kind, 2, callbacks=[{"DieAt": {"cycle": 2}}, plateau], freeze_submodels=["body@wide"]),
    }
    return [*first, second]


def ends_with(run: Path, n_cycles: int = 2) -> dict[str, Any]:
    """Return all that a run ended with: each bit of weights and optimizer, and the table of metrics but for times."""
    found: dict[str, Any] = {}
    for number in range(1, n_cycles + 1):
        for place in (run / f"cycle-{number}", run / f"cycle-{number}" / "final"):
            for name, value in hc.load(place).items():
                if not name.startswith("training/"):
                    found[f"{place.relative_to(run)} {name}"] = np.asarray(value).tobytes().hex()
    lines = [line.split(",") for line in (run / "metrics.csv").read_text(encoding="utf-8").splitlines()]
    found["metrics.csv"] = [[cell for n, cell in enumerate(line) if n != 3] for line in lines]
    return found


def log(run: Path, event: str = "") -> list[dict[str, Any]]:
    """Return the entries of a run's log, all or those of one kind."""
    entries = [json.loads(line) for line in (run / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    return [entry for entry in entries if not event or entry["event"] == event]


def model_weights(run: Path, cycle: int = 1) -> dict[str, Any]:
    """Return the last weights of a cycle, by name."""
    return hc.load(run / f"cycle-{cycle}" / "final")


@export_config
@hc.keras.stateless
class Pause(keras.callbacks.Callback):
    """Makes batches take their time, so that somebody can see them."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Wait."""
        time.sleep(self.seconds)


@export_config
@hc.keras.stateless
class Fails(keras.callbacks.Callback):
    """Fails when the epoch begins that a test has set, from 0."""

    epoch: int | None = None

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Maybe now."""
        if epoch == self.epoch:
            raise InterruptedError("stopped")
