"""Batches with other labels, which are computed from the images."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from hpcckpt.train.batches.mapping import each_batch


def centres(datasets: Any) -> tuple[Any, Any]:
    """Return datasets whose labels say where the digit is: row and column, from -1 to 1. Independent.

    Parameters
    ----------
    datasets : pair of tf.data.Dataset
        Of images, light on black, and classes.
    """
    return each_batch(datasets, lambda images, _: (images, centre_of(images)))


def classes_and_centres(datasets: Any) -> tuple[Any, Any]:
    """Return datasets whose labels are a mapping: ``digit``, the class, and ``centre``, as `centres` has it. Independent.

    Parameters
    ----------
    datasets : pair of tf.data.Dataset
        Of images, light on black, and classes.
    """
    return each_batch(datasets, lambda images, labels: (images, {"digit": labels, "centre": centre_of(images)}))


def rows(datasets: Any) -> tuple[Any, Any]:
    """Return datasets whose labels are the rows of the images from the last to the first. Independent.

    The order makes it easier to learn, https://arxiv.org/abs/1409.3215.

    Parameters
    ----------
    datasets : pair of tf.data.Dataset
        Of images of one size.
    """

    def reverse(images: Any, _: Any) -> tuple[Any, Any]:
        _, height, width, channels = images.shape
        return images, tf.reverse(tf.reshape(images, (-1, height, width * channels)), [1])

    return each_batch(datasets, reverse)


def centre_of(images: Any) -> Any:
    """Return the centre of brightness of images: row and column, from -1 to 1, of shape (batch, 2)."""
    light = tf.reduce_sum(images, -1)
    total = tf.maximum(tf.reduce_sum(light, (1, 2)), 1e-6)
    height, width = images.shape[1:3]
    row = tf.reduce_sum(light * tf.linspace(-1.0, 1.0, height)[:, tf.newaxis], (1, 2))
    column = tf.reduce_sum(light * tf.linspace(-1.0, 1.0, width), (1, 2))
    return tf.stack([row / total, column / total], 1)
