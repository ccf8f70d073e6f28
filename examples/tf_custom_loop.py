"""Run a custom training loop in TensorFlow that resumes after any kill.

    python examples/tf_custom_loop.py --run runs/loop --steps 400

Each call of a tf.function trains many steps. If the program is killed, even with SIGKILL, run the same command again:
the shuffled order, the noise, Adam and the step counter resume from the newest checkpoint. The SHA-256 of the weights
in the last line equals that of a run that was never killed.
"""

from __future__ import annotations

import argparse
import hashlib
import os
from collections.abc import Callable, Sequence
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf

import hpcckpt as hc


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="a TensorFlow training loop that survives any kill")
    parser.add_argument("--run", required=True, metavar="DIR", help="run directory for the checkpoints")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--per-call", type=int, default=10, metavar="N", help="steps in one call of the tf.function")
    parser.add_argument("--every", type=int, default=50, metavar="N", help="steps between two checkpoints")
    return parser.parse_args(argv)


def batches() -> tf.data.Dataset:
    """Return endless shuffled batches of points of the sine function."""
    x = np.linspace(-3, 3, 1000, dtype=np.float32)[:, None]
    return tf.data.Dataset.from_tensor_slices((x, np.sin(x))).shuffle(1000, seed=1).repeat().batch(32)


class Training(tf.Module):
    """The training state: weights, optimizer, data position, noise stream and step."""

    def __init__(self) -> None:
        super().__init__()
        self.model = keras.Sequential([
            keras.layers.Input((1,)), keras.layers.Dense(32, activation="tanh"), keras.layers.Dense(1)
        ])  # fmt: skip
        self.optimizer = keras.optimizers.Adam(0.01)
        self.iterator = iter(batches())
        self.noise = tf.random.Generator.from_seed(1)
        self.step = tf.Variable(0, dtype=tf.int64)

    @tf.function
    def train(self, n_steps: tf.Tensor) -> tf.Tensor:
        """Train `n_steps` steps in one graph call; return the last loss."""
        loss = tf.constant(0.0)
        for _ in tf.range(n_steps):
            x, y = next(self.iterator)
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((self.model(x + self.noise.normal(tf.shape(x), stddev=0.05)) - y) ** 2)
            variables = self.model.trainable_variables
            self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))  # noqa: B905 - in a graph
            self.step.assign_add(1)
        return loss

    def digest(self) -> str:
        """Return the SHA-256 of the weights."""
        return hashlib.sha256(b"".join(np.asarray(v).tobytes() for v in self.model.trainable_variables)).hexdigest()


def main(argv: Sequence[str] | None = None, on_step: Callable[[Any], None] = lambda _: None) -> None:
    """Train, or resume training."""
    args = arguments(argv)
    keras.utils.set_random_seed(1)
    training = Training()
    checkpoint = tf.train.Checkpoint(training=training)
    with hc.tensorflow.CheckpointManager(
        checkpoint, args.run, max_to_keep=3, step_counter=training.step, checkpoint_interval=args.every
    ) as manager:
        manager.restore_or_initialize()
        print(f"begin: step={int(training.step)}", flush=True)
        loss = tf.constant(0.0)
        while training.step < args.steps:
            loss = training.train(tf.constant(args.per_call))
            manager.save(metrics={"loss": float(loss)})  # saves every `args.every` steps, in the background
            on_step(manager)
        manager.save(check_interval=False)
    print(f"done: step={int(training.step)} loss={float(loss):.4f} sha256={training.digest()}", flush=True)


if __name__ == "__main__":
    main()
