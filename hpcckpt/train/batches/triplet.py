"""Triplets of images: an anchor, another one of its class, and one of another class."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from hpcckpt.train.batches.mapping import each_batch


def triplets(datasets: Any) -> tuple[Any, Any]:
    """Return datasets of triplets, (batch, 3, height, width, channels), with the anchors' labels. Independent.

    Each image of a batch is an anchor once. With it are the next one of its class in the batch, itself if there is no
    other, and the next one of another class.

    Parameters
    ----------
    datasets : pair of tf.data.Dataset
        Of images and classes; a batch needs some of each class.
    """
    return each_batch(datasets, lambda images, labels: (tf.gather(images, partners(labels)), labels))


def partners(labels: Any) -> Any:
    """Return for each label the positions of anchor, positive and negative, of shape (batch, 3)."""
    n = tf.shape(labels)[0]
    places = tf.range(n)
    ahead = (places - places[:, tf.newaxis] - 1) % n  # of the next one 0, of itself n - 1
    is_same = tf.equal(labels, labels[:, tf.newaxis])
    positive = tf.argmin(tf.where(is_same, ahead, n), 1, tf.int32)
    negative = tf.argmin(tf.where(is_same, n, ahead), 1, tf.int32)
    return tf.stack([places, positive, negative], 1)
