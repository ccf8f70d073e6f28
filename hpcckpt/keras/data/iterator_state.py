"""The state of a ``tf.data`` iterator as bytes, and back: its position, and what it has read ahead.

How often shuffles have drawn is in it only while they have data to hand out: see
:mod:`hpcckpt.keras.data.shuffle_state`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from hpcckpt.errors import StateError
from hpcckpt.state.tree import Array

NO_STATE = np.empty(0, np.uint8)
_IGNORE, _FAIL = 1, 2
"""What TensorFlow does about state that lies outside of the iterator: a random operation, a Python function."""


def read_iterator(iterator: Any, *, is_ignoring: bool = False) -> Array:
    """Return the state of an iterator. Independent.

    Parameters
    ----------
    iterator : tf.data.Iterator
        An iterator that was made eagerly.
    is_ignoring : bool
        Leave out what lies outside of the iterator, instead of failing of it.

    Raises
    ------
    StateError
        If TensorFlow cannot save such an iterator; says why.
    """
    import tensorflow as tf

    resource = getattr(iterator, "_iterator_resource", None)
    if resource is None:
        raise StateError(f"a {type(iterator).__name__} cannot be saved")
    policy = _IGNORE if is_ignoring else _FAIL
    try:
        state = tf.raw_ops.SerializeIterator(resource_handle=resource, external_state_policy=policy)
        return np.frombuffer(tf.io.serialize_tensor(state).numpy(), np.uint8)
    except (tf.errors.OpError, ValueError) as error:
        raise StateError(_reason(error)) from error


def write_iterator(iterator: Any, state: Array) -> None:
    """Set the state of an unread iterator of the same pipeline. Independent.

    TensorFlow makes one more iterator for that, and so each shuffle draws once more.

    Raises
    ------
    StateError
        If the pipeline is another one.
    """
    import tensorflow as tf

    try:
        parsed = tf.io.parse_tensor(state.tobytes(), tf.variant)
        tf.raw_ops.DeserializeIterator(resource_handle=iterator._iterator_resource, serialized=parsed)
    except (tf.errors.OpError, ValueError, AttributeError) as error:
        raise StateError(f"the position was saved by another input pipeline: {_reason(error)}") from error


def restart(iterator: Any, dataset: Any = None) -> None:
    """Reset an iterator to its beginning, as if it had just been made: shuffles draw. Independent.

    Parameters
    ----------
    iterator : tf.data.Iterator
        The iterator.
    dataset : tf.data.Dataset, optional
        Let it read this one, whose elements have the same types and shapes, instead of its own.
    """
    import tensorflow as tf

    read = iterator._dataset if dataset is None else dataset
    tf.raw_ops.MakeIterator(dataset=read._variant_tensor, iterator=iterator._iterator_resource)


def is_at_end(iterator: Any) -> bool:
    """Return True if nothing is left to read of an iterator, which keeps its position. Independent."""
    state = read_iterator(iterator, is_ignoring=True)
    try:
        next(iterator)
    except StopIteration:
        return True
    write_iterator(iterator, state)
    return False


def repeats_what_is_shuffled(iterator: Any) -> bool:
    """Return True if a pipeline repeats after a shuffle, which then draws once in each round."""
    return _is_upstream(iterator, "_RepeatDataset", "_ShuffleDataset")


def shuffles_what_is_shuffled(iterator: Any) -> bool:
    """Return True if a pipeline shuffles after a shuffle: the first one draws at the first read."""
    return _is_upstream(iterator, "_ShuffleDataset", "_ShuffleDataset")


def _is_upstream(iterator: Any, later: str, earlier: str) -> bool:
    """Return True if datasets of two kinds follow each other, with any between them."""
    return any(
        type(dataset).__name__ == later and any(type(d).__name__ == earlier for d in upstream(dataset))
        for dataset in datasets_of(getattr(iterator, "_dataset", None))
    )


def datasets_of(dataset: Any) -> Iterator[Any]:
    """Yield the datasets that a pipeline is made of, each once."""
    found = [] if dataset is None else [dataset, *upstream(dataset)]
    yield from {id(one): one for one in found}.values()


def upstream(dataset: Any) -> Iterator[Any]:
    """Yield the datasets that another one is made of."""
    for source in getattr(dataset, "_inputs", tuple)():
        yield source
        yield from upstream(source)


def _reason(error: Exception) -> str:
    """Return TensorFlow's message without its internal operation names."""
    text = re.sub(r"\{\{.*?\}\}|\[Op:\w+\]|name: *$", "", str(getattr(error, "message", error)))
    return " ".join(text.split())[:200].rstrip(". ")
