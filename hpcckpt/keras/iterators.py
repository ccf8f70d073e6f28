"""The state of a ``tf.data`` iterator as bytes, and back: its position, and what it has read ahead."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from hpcckpt.errors import StateError
from hpcckpt.snapshot import Array

NO_STATE = np.empty(0, np.uint8)
_IGNORE, _FAIL = 1, 2
"""What TensorFlow does about state that lies outside of the iterator: a random operation, a Python function."""
_SHUFFLES = b"epoch_num_random_samples"
"""What TensorFlow calls, in an iterator's state, how often a shuffle has drawn the order of an epoch."""


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
    """Have an iterator of the same pipeline, which nothing was read of, go on from a state. Independent.

    TensorFlow makes one more iterator for that, and so each shuffle draws once more.  A state usually holds how often
    its shuffles had drawn, and sets them back.  Those that had handed out all their data, which others had read ahead,
    are not in it any more.  They have to have drawn once for this epoch all the same, or later epochs had another
    order: a shuffle in front of another draws when something is read, the last one when its iterator is made.

    Raises
    ------
    StateError
        If the pipeline is another one.
    """
    before = read_iterator(iterator, is_ignoring=True)
    misses = _n_draws(state) < max(_n_draws(before), _n_shuffles(iterator))
    if misses and shuffles_what_is_shuffled(iterator):
        next(_another(iterator), None)
    _write(iterator, state)
    if misses:
        _write(_another(iterator), before)


def forgets_repeats(iterator: Any, state: Array) -> bool:
    """Say whether a pipeline repeats what it shuffles, and a state holds no more how often that has been drawn."""
    return repeats_what_is_shuffled(iterator) and _n_draws(state) < _n_shuffles(iterator)


def repeats_what_is_shuffled(iterator: Any) -> bool:
    """Say whether a pipeline has a shuffle in front of a repetition: it draws once in each round."""
    return _is_upstream(iterator, "_RepeatDataset", "_ShuffleDataset")


def shuffles_what_is_shuffled(iterator: Any) -> bool:
    """Say whether a pipeline has a shuffle behind a shuffle: the first draws when something is read."""
    return _is_upstream(iterator, "_ShuffleDataset", "_ShuffleDataset")


def _n_draws(state: Array) -> int:
    """Return of how many shuffles, and other datasets of chance, a state holds how often they have drawn."""
    return state.tobytes().count(_SHUFFLES)


def _n_shuffles(iterator: Any) -> int:
    return sum(type(dataset).__name__ == "_ShuffleDataset" for dataset in _datasets(iterator))


def _another(iterator: Any) -> Any:
    return type(iterator)(iterator._dataset)


def _write(iterator: Any, state: Array) -> None:
    import tensorflow as tf

    try:
        parsed = tf.io.parse_tensor(state.tobytes(), tf.variant)
        tf.raw_ops.DeserializeIterator(resource_handle=iterator._iterator_resource, serialized=parsed)
    except (tf.errors.OpError, ValueError, AttributeError) as error:
        raise StateError(f"the position was saved by another input pipeline: {_reason(error)}") from error


def _is_upstream(iterator: Any, later: str, earlier: str) -> bool:
    """Say whether datasets of two kinds follow each other, with any between them."""
    return any(
        type(dataset).__name__ == later and any(type(d).__name__ == earlier for d in _upstream(dataset))
        for dataset in _datasets(iterator)
    )


def _datasets(iterator: Any) -> Iterator[Any]:
    """Yield the datasets that a pipeline is made of."""
    dataset = getattr(iterator, "_dataset", None)
    if dataset is not None:
        yield dataset
        yield from _upstream(dataset)


def _upstream(dataset: Any) -> Iterator[Any]:
    for source in getattr(dataset, "_inputs", tuple)():
        yield source
        yield from _upstream(source)


def _reason(error: Exception) -> str:
    """Return what TensorFlow says, without the names of its own operations."""
    text = re.sub(r"\{\{.*?\}\}|\[Op:\w+\]|name: *$", "", str(getattr(error, "message", error)))
    return " ".join(text.split())[:200].rstrip(". ")
