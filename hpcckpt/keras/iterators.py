"""The state of a ``tf.data`` iterator as bytes, and back: its position, and what it has read ahead."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from hpcckpt.errors import StateError
from hpcckpt.snapshot import Array

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
    """Have an iterator of the same pipeline go on from a state. Independent.

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


def _reason(error: Exception) -> str:
    """Return what TensorFlow says, without the names of its own operations."""
    text = re.sub(r"\{\{.*?\}\}|\[Op:\w+\]|name: *$", "", str(getattr(error, "message", error)))
    return " ".join(text.split())[:200].rstrip(". ")
