"""The order of the images in an epoch: different in each epoch, and identical for the same seed.

``Dataset.shuffle`` draws from TensorFlow's global seed too, and ranks often have different ones (for dropout): each
would deal the images from another order, some twice and some never.  So the one number per epoch that all ranks must
agree on comes from the seed alone.  All else is computed, not drawn: the iterator's state is a few numbers, not a
buffer of images.

It is drawn when the iterator of an epoch is made, even if it is never read, and by nothing else in a pipeline: so a run
that resumes in a later epoch has the same order, without reading the earlier epochs. (A `Dataset.shuffle` after another
one makes that one draw at the first read only.)
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from hpcckpt.keras.data.shuffle_state import mark_as_random

_SECOND = 0x5EED
"""TensorFlow's generators take two numbers, and treat two zeros as none."""


def epochs(seed: int, second: int = _SECOND) -> Any:
    """Return a dataset of one element, two numbers that are others in each epoch (with each iterator).

    Parameters
    ----------
    seed : int
        Of the order.
    second : int
        Another part of the seed, not 0. Both are saved with a position, which is refused where they differ.
    """
    numbers = tf.raw_ops.RandomDatasetV2(
        seed=tf.constant(seed, tf.int64),
        seed2=tf.constant(second, tf.int64),
        seed_generator=tf.raw_ops.DummySeedGenerator(),
        rerandomize_each_iteration=True,
        output_types=[tf.int64],
        output_shapes=[[]],
    )
    dataset = tf.data.experimental.from_variant(numbers, tf.TensorSpec([], tf.int64))
    mark_as_random(dataset, [seed, second])
    return dataset.take(2).batch(2, drop_remainder=True)


def shuffled_batches(n: int, batch_size: int, n_steps: int, rank: int, size: int, seed: int) -> Any:
    """Return a dataset of positions below `n`, this rank's in each of `n_steps` batches of all ranks together.

    Which images make the next step of all ranks depends on how many they take in all, not on how many ranks they are.
    """
    mine = tf.range(batch_size, dtype=tf.int64) * size + rank

    def positions(step: Any, numbers: Any) -> Any:
        return tf.random.experimental.index_shuffle(step * batch_size * size + mine, numbers, n - 1)

    def epoch(numbers: Any) -> Any:
        return tf.data.Dataset.range(n_steps).map(lambda step: positions(step, numbers))

    return epochs(seed).flat_map(epoch)


def shuffled(dataset: Any, buffer_size: int, numbers: Any) -> Any:
    """Return a dataset whose elements are drawn from a buffer, in an order that follows from two numbers."""
    spec = dataset.element_spec
    drawn = tf.raw_ops.ShuffleDataset(
        input_dataset=tf.data.experimental.to_variant(dataset),
        buffer_size=tf.constant(buffer_size, tf.int64),
        seed=numbers[0],
        seed2=numbers[1],
        output_types=[spec.dtype],
        output_shapes=[spec.shape],
        reshuffle_each_iteration=False,
    )
    return tf.data.experimental.from_variant(drawn, spec)


def shuffled_range(n: int, numbers: Any) -> Any:
    """Return a dataset of the numbers below `n`, in an order that follows from two numbers."""
    return tf.data.Dataset.range(n).map(lambda i: tf.random.experimental.index_shuffle(i, numbers, n - 1))
