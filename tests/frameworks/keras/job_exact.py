"""A training that should be repeatable to the bit: ``job_exact.py RUN [KILL_AT]``; tells its level and a digest."""

from __future__ import annotations

import hashlib
import os
import signal
import sys
from typing import Any

import hpcckpt as hc

hc.enable_exact_resume(seed=7)

import keras  # noqa: E402 - as a program would that has it all from one import
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

layers, callbacks = keras.layers, keras.callbacks
run, kill_at = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 0


@hc.keras.stateless
class Kill(callbacks.Callback):  # type: ignore[misc]  # Keras has no types
    """Ends the process as the kernel would when memory runs out."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Maybe now."""
        if int(self.model.optimizer.iterations.numpy()) == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)


x = np.random.default_rng(3).normal(size=(50, 4)).astype("float32")
data = tf.data.Dataset.from_tensor_slices((x, x.sum(axis=1, keepdims=True))).shuffle(50).batch(5)
model = keras.Sequential([
    layers.Input((4,)), layers.Dense(8, activation="relu"), layers.BatchNormalization(), layers.Dropout(0.5),
    layers.Dense(1),
])  # fmt: skip
model.compile(keras.optimizers.Adam(0.05), "mse", metrics=["mae"])
backup = hc.keras.BackupAndRestore(run, delete_checkpoint=False, every_n_batches=3, iterator="exact")
model.fit(
    data, epochs=6, verbose=0, validation_data=(x, x.sum(axis=1, keepdims=True)), callbacks=[
        callbacks.LearningRateScheduler(lambda _, rate: float(rate) * 0.9),
        callbacks.ReduceLROnPlateau("loss", factor=0.5, patience=1, min_delta=10.0),
        callbacks.EarlyStopping("val_loss", patience=4, min_delta=10.0, restore_best_weights=True), backup, Kill(),
    ],
)  # fmt: skip
digest = hashlib.sha256(b"".join(weight.tobytes() for weight in model.get_weights())).hexdigest()
print(f"level={backup.level} epochs={backup.epoch} steps={backup.step} sha256={digest}")
