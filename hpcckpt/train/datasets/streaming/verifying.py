"""Which images cannot be decoded: before a training, or after it failed, to name the one that it failed of."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from hpcckpt.train.datasets.streaming.decoding import Decode, refusal_in

if TYPE_CHECKING:
    from hpcckpt.train.datasets.streaming.streams import Part

_SEARCH = "_hpcckpt_first_damage"
_OF_DATA = (tf.errors.DataLossError, tf.errors.InvalidArgumentError)
"""What TensorFlow raises about records and images that are damaged, without a name."""


def unreadable(paths: Sequence[bytes]) -> list[str]:
    """Return those of some files that are no images, in their order. Independent."""
    return [os.fsdecode(path) for path in paths if not _is_readable(path)]


def _is_readable(path: bytes) -> bool:
    try:
        tf.io.decode_image(tf.io.read_file(path), expand_animations=False)
    except tf.errors.OpError:
        return False
    return True


def first_damage(part: Part, decode: Decode, numbers: Iterable[int]) -> str:
    """Return the name of the first of some examples that cannot be read or decoded; empty if there is none."""
    for number in numbers:
        place = tf.constant(number, tf.int64)
        try:
            encoded, _, name = part.read(place, 1)
            decode(encoded, name)
        except tf.errors.OpError:
            return os.fsdecode(part.name(place).numpy())
    return ""


def mark_searchable(dataset: Any, search: Callable[[int], str]) -> None:
    """Mark a dataset as one whose damaged example can be found, from a batch of its last epoch on. Pure."""
    setattr(dataset, _SEARCH, search)


def damage_of(error: BaseException, read: Iterable[tuple[Any, int]]) -> str:
    """Return which example an error of a training is about, and what to do; empty if it is about none. Independent.

    Parameters
    ----------
    error : Exception
        What ``fit`` raised.
    read : iterable of (tf.data.Dataset or None, int)
        What it read, and how many batches of an epoch were done.
    """
    if not isinstance(error, _OF_DATA):
        return ""
    if text := refusal_in(error):
        return text
    searches = [(getattr(dataset, _SEARCH, None), batch) for dataset, batch in read]
    for search, batch in searches:
        if search is not None and (name := search(batch)):
            return f"{name} cannot be decoded: replace it, or make it again"
    return ""
