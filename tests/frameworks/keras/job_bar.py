"""Trains with Keras' progress bar and saves within the epoch, in `fit`: ``job_bar.py DIRECTORY``."""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np

from hpcckpt.keras import BackupAndRestore, ModelCheckpoint

place = Path(sys.argv[1])
model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
rows = np.ones((60, 4), "float32")
callbacks = [
    ModelCheckpoint(place / "best", save_freq=5, verbose=0),
    BackupAndRestore(place / "backup", every_n_batches=3, async_save=False),
]
model.fit(rows, rows[:, :1], batch_size=5, epochs=2, verbose=1, callbacks=callbacks)
