"""What configurations of these tests name besides Keras' own, a user's module: a callback that delays batches."""

from __future__ import annotations

import os
import time
from typing import Any

import tensorflow as tf

import hpcckpt.train


@hpcckpt.train.export_config
@hpcckpt.keras.stateless
class Slow(tf.keras.callbacks.Callback):
    """Makes a batch take so long while a file is there: a test takes it away when it has done what it is about."""

    def __init__(self, seconds: float, file: str) -> None:
        super().__init__()
        self._seconds, self._file = seconds, file

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if os.path.exists(self._file):
            time.sleep(self._seconds)
