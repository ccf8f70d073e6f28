#!/usr/bin/env python3
"""The second of two cycles takes model, data and loss from the first, and begins with the weights it ended with."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf

import hpcckpt
import hpcckpt.train

BEGINNINGS: list[list[str]] = []
RATES: list[float] = []


def digests(arrays: list[np.ndarray]) -> list[str]:
    """Return what arrays hold, in an order that does not depend on their names."""
    return sorted(hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest() for array in arrays)


@hpcckpt.train.export_config
class RememberBeginning(tf.keras.callbacks.Callback):
    """Keeps what the weights are before the first batch."""

    def on_epoch_begin(self, epoch: int, logs: object = None) -> None:
        self.is_first = epoch == 0

    def on_train_batch_begin(self, batch: int, logs: object = None) -> None:
        if batch == 0 and self.is_first:
            BEGINNINGS.append(digests(self.model.get_weights()))
            RATES.append(float(np.asarray(self.model.optimizer.learning_rate)))


def loop(num_epochs: int) -> dict:
    """Return a training loop that remembers its beginning."""
    return {"ktf.train.KerasTrainLoop": {"num_epochs": num_epochs, "callbacks": [{"RememberBeginning": {}}]}}


with tempfile.TemporaryDirectory() as directory:
    histories = hpcckpt.train.Environment(Path(directory) / "run").run(
        [
            {
                "datasets": {"ktf.datasets.mnist.from_raw": {"batch_size": 50, "limit": 1000}},
                "model": {"ktf.models.LeNet5": {}},
                "loss": {"tf.keras.losses.SparseCategoricalCrossentropy": {"from_logits": True}},
                "optimizer": {"tf.keras.optimizers.Adam": {"learning_rate": 0.0005}},
                "train_loop": loop(2),
                "seed": 1,
            },
            {"optimizer": {"tf.keras.optimizers.Adam": {"learning_rate": 0.00025}}, "train_loop": loop(1)},
        ]
    )
    first = hpcckpt.load(Path(directory) / "run" / "cycle-1")
    saved = {digest for array in first.values() for digest in digests([array])}

assert [len(history.epoch) for history in histories] == [2, 1], [history.epoch for history in histories]
assert len(BEGINNINGS) == 2, len(BEGINNINGS)
assert set(BEGINNINGS[1]) <= saved, "the second cycle did not begin with what the first has saved"
assert not set(BEGINNINGS[0]) & set(BEGINNINGS[1]), "the first cycle has trained nothing"
assert np.allclose(RATES, [0.0005, 0.00025]), RATES
assert histories[1].history["loss"][0] < histories[0].history["loss"][0]
print("*********** Passed ***********")
