"""Run a program of Horovod with one line changed until a rank kills itself: ``job_example.py PLACE PROGRAM``.

Each rank appends to ``PLACE/told-RANK.jsonl`` the loss of fixed samples, as hexadecimal numbers: of the model with
which the run begins, and of the model after each batch at whose end the run is saved.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import horovod.tensorflow.keras as hvd
import keras
import numpy as np
import tensorflow as tf

PLACE, PROGRAM = Path(sys.argv[1]), Path(sys.argv[2])
THEIRS = "hvd.callbacks.BroadcastGlobalVariablesCallback(0),"
EVERY, LAST = 4, 10
"""The run is saved after every four batches, so the save of batch 4 is committed when that of batch 8 begins."""
OURS = f"hpcckpt.horovod.RestoreCallback('run', every_n_batches={EVERY}),"


def samples(seed: int, count: int) -> Any:
    """Return images, and labels that can be learned from them: nothing is downloaded."""
    labels = np.random.default_rng(seed).integers(0, 10, count).astype("uint8")
    images = np.random.default_rng(seed + 1).integers(0, 100, (count, 28, 28)).astype("uint8")
    images[np.arange(count), 2 * labels + 3] += 150
    return images, labels


class Probe(keras.callbacks.Callback):
    """Tells the loss of fixed samples, and kills the last rank."""

    def __init__(self, backup: Any) -> None:
        super().__init__()
        self.backup, self.n_batches = backup, 0
        images, labels = samples(100, 64)
        self.images, self.labels = (images[..., np.newaxis] / 255.0).astype("float32"), labels.astype("int64")

    def tell(self, what: str, step: int) -> None:
        """Write down the loss, so that a kill does not lose it."""
        loss = tf.keras.losses.SparseCategoricalCrossentropy()(self.labels, self.model(self.images, training=False))
        told = {what: step, "loss": float(loss).hex(), "size": hvd.size()}
        with Path(PLACE, f"told-{hvd.rank()}.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(told) + "\n")

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Tell with what the run begins."""
        if not self.n_batches:
            restored = self.backup.restored
            self.tell("begun", 0 if restored is None else restored.step)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Tell what is saved now; at last be killed."""
        self.n_batches += 1
        step = self.backup.step + 1  # it counts after this callback
        if step % EVERY == 0:
            self.tell("saved", step)
        if self.n_batches == LAST and hvd.rank() == hvd.size() - 1:
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Run the program, with one line changed and the probe added to its callbacks."""
    original = PROGRAM.read_text(encoding="utf-8")
    assert original.count(THEIRS) == 1
    fit = keras.Model.fit

    def fit_with_probe(model: Any, *args: Any, callbacks: Any, **options: Any) -> Any:
        return fit(model, *args, callbacks=[*callbacks, Probe(callbacks[0])], **options)

    keras.Model.fit = fit_with_probe
    tf.keras.datasets.mnist.load_data = lambda path: (samples(hvd.rank(), 1500), None)
    os.chdir(PLACE)
    sys.argv[1:] = []
    program = compile("import hpcckpt.horovod\n" + original.replace(THEIRS, OURS), str(PROGRAM), "exec")
    exec(program, {"__name__": "__main__"})


main()
