"""Datasets of a pair of arrays: images that all fit into memory, as bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from hpcckpt.train.datasets.feeding import N_AHEAD, Feeding
from hpcckpt.train.datasets.images import Images, Integers, Raw, checked, mixed_order, n_for_training
from hpcckpt.train.datasets.ordering import shuffled_batches

Pair = tuple[Any, Any]
"""Two ``tf.data.Dataset``, to train and to validate with."""


def from_arrays(raw: Raw, feeding: Feeding, name: str = "the parser") -> Pair:
    """Return a training and a validation dataset of images in memory. Independent.

    Parameters
    ----------
    raw : Raw
        As a parser returns it.
    feeding : Feeding
        How to batch the images.
    name : str
        Name of the data in errors.

    Returns
    -------
    tuple
        The training dataset: shuffled, with the same number of batches on all ranks, all full. The validation dataset:
        in order, with each image once on one rank; the last batch may be short, and a rank may have one batch more than
        another.
    """
    raw = checked(raw, name)
    train, valid = _parts(raw, feeding)
    n_train = feeding.limited(len(train[1]))
    n_steps = feeding.n_steps(n_train)
    feeding.check_validation(len(valid[1]))
    look = finish(raw.white, feeding)
    rank, size = feeding.share
    of_training = shuffled_batches(n_train, feeding.batch_size, n_steps, rank, size, feeding.order)
    of_validation = tf.data.Dataset.range(len(valid[1])).shard(size, rank).batch(feeding.batch_size)
    counted = of_training.map(_lookup(*train)).apply(tf.data.experimental.assert_cardinality(n_steps))
    return made_ahead(counted, look), made_ahead(of_validation.map(_lookup(*valid)), look)


def _parts(raw: Raw, feeding: Feeding) -> tuple[tuple[_Table, Integers], tuple[_Table, Integers]]:
    """Return where to look images up, and which, for training and for validation."""
    table = _Table(raw.train)
    order = mixed_order(len(raw.train))
    if raw.valid is not None and feeding.validation is None:
        own = _Table(raw.valid)
        return (table, order), (own, mixed_order(len(raw.valid)))
    cut = n_for_training(len(order), feeding.share_of_validation)
    return (table, order[:cut]), (table, order[cut:])


class _Table:
    """Images where TensorFlow can look them up."""

    def __init__(self, images: Images) -> None:
        with tf.device("/CPU:0"):  # where pipelines run
            self.pixels, self.labels = tf.constant(images.pixels), tf.constant(images.labels)


def _lookup(table: _Table, order: Integers) -> Callable[[Any], tuple[Any, Any]]:
    """Return what turns numbers, in this order, into images and labels."""
    with tf.device("/CPU:0"):
        places = tf.constant(order)

    def look_up(numbers: Any) -> tuple[Any, Any]:
        found = tf.gather(places, numbers)
        return tf.gather(table.pixels, found), tf.gather(table.labels, found)

    return look_up


def finish(white: int, feeding: Feeding) -> Callable[[Any, Any], tuple[Any, Any]]:
    """Return what turns a batch of bytes into what a model takes: floats from 0 to 1, as large as wanted.

    It comes after the prefetched batches, see `made_ahead`.
    """

    def look(pixels: Any, labels: Any) -> tuple[Any, Any]:
        images = tf.cast(pixels, tf.float32) / white
        if feeding.image_size is not None:
            images = tf.image.resize(images, (feeding.image_size, feeding.image_size))
        if feeding.force_rgb:
            images = _rgb(images)
        return images, labels

    return look


def _rgb(images: Any) -> Any:
    """Return images with three channels: grey three times, or the first three."""
    return tf.repeat(images, 3, axis=-1) if images.shape[-1] < 3 else images[..., :3]


def made_ahead(batches: Any, look: Callable[[Any, Any], tuple[Any, Any]], *, is_read_again: bool = False) -> Any:
    """Return a dataset whose batches are made while others are trained on, as bytes, and looked at when wanted.

    What was made ahead is part of an iterator's state, and so of every checkpoint.  TensorFlow would make more ahead
    by itself, behind each `map`, at every stage: the state of a batch of 16 images of 96×96 pixels is 3.2 MB then, and
    0.9 MB so, in the same time.

    With `is_read_again` the state has the position only (TensorFlow's symbolic checkpoint), and a resumed run reads
    what was made ahead again: that is for data that can be read from any position.
    """
    options = tf.data.Options()
    if is_read_again:
        options.experimental_symbolic_checkpoint = True
    options.experimental_optimization.map_parallelization = False
    options.experimental_optimization.inject_prefetch = False
    return batches.prefetch(N_AHEAD).map(look).with_options(options)
