"""Pipelines as users write them, whose place is hard to find again; rows are numbers, so that batches can be told."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.framework import config

N_ROWS, SIZE = 24, 3
N_BATCHES = N_ROWS // SIZE
AUTO = tf.data.AUTOTUNE
Make = Callable[[], dict[str, Any]]
"""Makes what ``fit`` is given, as a new process would."""


def rows(count: int = N_ROWS, first: int = 0) -> Any:
    numbers = tf.range(first, first + count, dtype=tf.float32)[:, tf.newaxis]
    return tf.data.Dataset.from_tensor_slices((numbers, numbers))


def shuffled(count: int = N_ROWS, first: int = 0, buffer: int = N_ROWS, **options: Any) -> Any:
    return rows(count, first).shuffle(buffer, **options)


def fed(data: Any, steps: int | None = None, **more: Any) -> dict[str, Any]:
    return {"x": data, "steps_per_epoch": steps, **more}


# -- an iterator for each epoch ----------------------------------------------------------------------


def shuffle_batch() -> dict[str, Any]:
    return fed(shuffled().batch(SIZE))


def shuffle_batch_prefetch() -> dict[str, Any]:
    return fed(shuffled(buffer=7).batch(SIZE).prefetch(AUTO))


def shuffle_batch_shuffle() -> dict[str, Any]:
    return fed(shuffled().batch(SIZE).shuffle(3))


def shuffle_in_the_same_order() -> dict[str, Any]:
    return fed(shuffled(reshuffle_each_iteration=False).batch(SIZE).prefetch(2))


def rounds_within_an_epoch() -> dict[str, Any]:
    return fed(shuffled(12).repeat(2).batch(SIZE))


def prefetched_rounds_within_an_epoch() -> dict[str, Any]:
    return fed(shuffled(12).batch(SIZE).prefetch(2).repeat(2))


def take_and_skip() -> dict[str, Any]:
    return fed(shuffled(40, buffer=40).skip(4).take(N_ROWS).batch(SIZE).prefetch(1))


def cache_before_the_shuffle() -> dict[str, Any]:
    return fed(rows().cache().shuffle(N_ROWS).batch(SIZE).prefetch(2))


def two_shuffles_side_by_side() -> dict[str, Any]:
    both = tf.data.Dataset.zip((shuffled(), shuffled()))
    return fed(both.map(lambda one, other: (one[0], other[1])).batch(SIZE).prefetch(2))


def shuffles_one_behind_another() -> dict[str, Any]:
    return fed(shuffled(12).concatenate(shuffled(12, 12)).batch(SIZE).prefetch(2))


def drawn_from_two() -> dict[str, Any]:
    sources = [shuffled(40, buffer=9), shuffled(40, 100, buffer=9)]
    drawn = tf.data.Dataset.sample_from_datasets(sources, rerandomize_each_iteration=True)
    return fed(drawn.take(N_ROWS).batch(SIZE).prefetch(2))


def parallel_map() -> dict[str, Any]:
    data = shuffled().map(lambda x, y: (x, y), num_parallel_calls=AUTO, deterministic=False)
    options = tf.data.Options()
    options.threading.private_threadpool_size = 2
    options.deterministic = False
    return fed(data.batch(SIZE, num_parallel_calls=AUTO).prefetch(AUTO).with_options(options))


def parallel_interleave() -> dict[str, Any]:
    files = tf.data.Dataset.range(4).shuffle(4)
    records = files.interleave(
        lambda n: rows(6).map(lambda x, y: (x + 100.0 * tf.cast(n, tf.float32), y)),
        cycle_length=2, num_parallel_calls=AUTO, deterministic=False,
    )  # fmt: skip
    return fed(records.shuffle(5).batch(SIZE).prefetch(AUTO).apply(tf.data.experimental.assert_cardinality(N_BATCHES)))


def length_unknown() -> dict[str, Any]:
    return fed(shuffled().filter(lambda x, _: x[0] < 18.0).batch(SIZE).prefetch(2))


def reads_another_in_order() -> dict[str, Any]:
    inner = rows(4)
    data = (
        tf.data.Dataset.range(6).shuffle(6).flat_map(lambda n: inner.map(lambda x, y: (x + tf.cast(n, tf.float32), y)))
    )
    return fed(data.batch(SIZE).apply(tf.data.experimental.assert_cardinality(N_BATCHES)))


def validated_on_the_same_shuffle() -> dict[str, Any]:
    data = shuffled(30)
    return fed(data.skip(6).batch(SIZE).prefetch(2), validation_data=data.take(6).batch(SIZE))


def arrays() -> dict[str, Any]:
    numbers = np.arange(N_ROWS, dtype="float32")[:, np.newaxis]
    return {"x": numbers, "y": numbers, "batch_size": SIZE}


# -- an iterator that goes on over epochs ------------------------------------------------------------


def endless(steps: int) -> dict[str, Any]:
    return fed(shuffled().batch(SIZE).prefetch(2).repeat(), steps)


def endless_prefetched(steps: int) -> dict[str, Any]:
    return fed(shuffled(buffer=9).batch(SIZE).repeat().prefetch(2), steps)


def endless_by_rows(steps: int) -> dict[str, Any]:
    return fed(shuffled(20).repeat().batch(SIZE).prefetch(AUTO), steps)


def endless_shuffled_over_rounds() -> dict[str, Any]:
    return fed(rows(20).repeat().shuffle(9).batch(SIZE).prefetch(2), N_BATCHES)


def endless_shuffled_twice() -> dict[str, Any]:
    return fed(shuffled().batch(SIZE).prefetch(1).repeat().shuffle(3).prefetch(1), 5)


def many_rounds() -> dict[str, Any]:
    return fed(shuffled().batch(SIZE).prefetch(2).repeat(9), 5)


def shares_of_an_epoch() -> dict[str, Any]:
    return fed(shuffled(3 * N_ROWS).batch(SIZE).prefetch(2), N_BATCHES)


def of_steps(make: Callable[[int], dict[str, Any]], steps: int) -> Make:
    """Return a pipeline with epochs of N steps, and N in its name."""
    made = functools.partial(make, steps)
    made.__name__ = f"{make.__name__}_{steps}"  # type: ignore[attr-defined]  # any object takes attributes
    return made


EXACT: list[Make] = [
    shuffle_batch, shuffle_batch_prefetch, shuffle_batch_shuffle, shuffle_in_the_same_order, rounds_within_an_epoch,
    prefetched_rounds_within_an_epoch, take_and_skip, cache_before_the_shuffle, two_shuffles_side_by_side,
    shuffles_one_behind_another, drawn_from_two, parallel_map, parallel_interleave, length_unknown,
    reads_another_in_order, validated_on_the_same_shuffle, arrays, of_steps(endless, 5), of_steps(endless, N_BATCHES),
    of_steps(endless_prefetched, 5), of_steps(endless_by_rows, 5), endless_shuffled_over_rounds, endless_shuffled_twice,
    many_rounds, shares_of_an_epoch,
]  # fmt: skip
"""Those whose place can be found again to the bit."""


# -- what cannot be restored ----------------------------------------------------------------------


def cache_behind_the_shuffle() -> dict[str, Any]:
    return fed(shuffled().cache().batch(SIZE))


def cache_behind_the_shuffle_endless() -> dict[str, Any]:
    return fed(shuffled().batch(SIZE).cache().repeat(), 5)


def reads_another_that_is_shuffled() -> dict[str, Any]:
    inner = shuffled(8)
    return fed(tf.data.Dataset.range(3).flat_map(lambda _: inner).batch(SIZE))


def shuffled_before_the_seed() -> dict[str, Any]:
    config.disable_op_determinism()  # with it TensorFlow wants a seed
    tf.random.set_seed(None)
    data = shuffled()
    config.enable_op_determinism()
    keras.utils.set_random_seed(7)
    return fed(data.batch(SIZE))


def draws_in_a_map() -> dict[str, Any]:
    return fed(rows().map(lambda x, y: (x + tf.random.uniform(()), y)).batch(SIZE))


def drawn_by_python() -> dict[str, Any]:
    """Return data that is read to its end with the first batch; nothing of Python is left in the iterator then."""
    spec = tf.TensorSpec((1,), tf.float32)
    data = tf.data.Dataset.from_generator(lambda: iter([([1.0], [1.0])] * 6), output_signature=(spec, spec))
    return fed(data.shuffle(N_ROWS).batch(SIZE))


def endless_validated_on_the_same_shuffle() -> dict[str, Any]:
    data = shuffled(30)
    train = data.skip(6).batch(SIZE).prefetch(2).repeat()
    return fed(train, 5, validation_data=data.take(6).batch(SIZE), validation_steps=2)


LESS: dict[Make, str] = {
    cache_behind_the_shuffle: "a cache",
    cache_behind_the_shuffle_endless: "a cache",
    reads_another_that_is_shuffled: "a function of the pipeline reads",
    shuffled_before_the_seed: "before a seed was set",
    draws_in_a_map: "stateful",
    drawn_by_python: "stateful",
    endless_validated_on_the_same_shuffle: "validation draws from a shuffle",
}
"""Those whose place cannot, and what the reason says."""
