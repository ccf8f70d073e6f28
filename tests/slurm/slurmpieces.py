"""What configurations of these tests name besides Keras' own: a callback that makes a batch take as long as it says."""

from __future__ import annotations

import time
from typing import Any

import tensorflow as tf

import hpcckpt.train


@hpcckpt.train.export_config
class Slow(tf.keras.callbacks.Callback):
    """So that a training needs its time on a machine of any speed."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        time.sleep(self._seconds)
