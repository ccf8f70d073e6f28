"""What random numbers begin with: for each cycle and rank something else, that follows from one seed.

A cycle draws the same numbers whether the cycles before it ran in the same process or not.  Rank 0 begins the first
cycle with the seed itself, as ``keras.utils.set_random_seed`` in a script would.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from hpcckpt.keras.callbacks.reproducibility import enable_exact_resume
from hpcckpt.state import random_streams


@contextlib.contextmanager
def repeatable(seed: int | None) -> Iterator[None]:
    """Have all that is trained in the block be repeatable to the bit, if there is a seed. Independent.

    Horovod has to be started within.  The settings of TensorFlow and Keras are restored after it: deterministic
    operations are slower, and the rest of the program may not want them.
    """
    if seed is None:
        yield
        return
    import keras
    from tensorflow.python.framework import config

    streams: Any = getattr(keras.backend, "experimental", None)  # Keras 2.15
    was_deterministic = config.is_op_determinism_enabled()
    had_streams = streams is None or streams.is_tf_random_generator_enabled()
    enable_exact_resume(seed)
    try:
        yield
    finally:
        if not was_deterministic:
            config.disable_op_determinism()
        if not had_streams:
            streams.disable_tf_random_generator()


def seed_of(seed: int, cycle: int, rank: int = 0) -> int:
    """Return what a rank begins a cycle with. Pure."""
    return seed if cycle == rank == 0 else random_streams.words_from("hpcckpt.train", seed, cycle, rank, count=1)[0]


def begin(seed: int | None, cycle: int, rank: int = 0) -> None:
    """Set all streams of random numbers to where a rank begins a cycle; without a seed leave them. Independent."""
    if seed is None:
        return
    import keras
    import tensorflow as tf

    own = seed_of(seed, cycle, rank)
    keras.utils.set_random_seed(own)
    tf.random.set_global_generator(tf.random.Generator.from_seed(own))
