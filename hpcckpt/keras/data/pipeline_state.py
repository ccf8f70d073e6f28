"""The position of a ``tf.data`` pipeline as bytes: the state of its iterator, and how often its shuffles drew."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from hpcckpt.errors import CorruptError, StateError
from hpcckpt.keras.data.iterator_state import NO_STATE, read_iterator, restart, write_iterator
from hpcckpt.keras.data.shuffle_state import ShuffleState, doubt_of, share_a_shuffle
from hpcckpt.state.packing import pack, unpack
from hpcckpt.state.tree import Array

Data = Mapping[str, Any]
Seeds = list[list[int]]
PATIENCE_S = 60.0
"""Seconds to wait until no shuffle draws while the position is read; a prefetch stops when its buffer is full."""
_FROM_BATCH = "_hpcckpt_from_batch"


def mark_as_seekable(dataset: Any, from_batch: Callable[[int], Any]) -> None:
    """Mark a dataset as one that can begin at any batch of an epoch, without reading what comes before. Pure.

    A run on another number of ranks then resumes within an epoch at once: a saved state fits the same number only.

    Parameters
    ----------
    dataset : tf.data.Dataset
        What Keras reads: it draws once for each iterator, and only from sources that are shared with the following.
    from_batch : callable
        Returns the dataset that begins with a batch, by its number in the epoch: the same stages in the same order.
    """
    setattr(dataset, _FROM_BATCH, from_batch)


class Pipeline:
    """A pipeline whose first iterator was made, and not yet read.

    Parameters
    ----------
    iterator : tf.data.Iterator
        Its iterator.
    is_array : bool
        Whether Keras itself has made it, of arrays.
    data : mapping
        What its position depends on; saved with it, see `DataSource.data`.

    Attributes
    ----------
    doubt : str
        Why its position cannot be restored; empty as long as no reason is known.
    """

    def __init__(self, iterator: Any, *, is_array: bool, data: Data) -> None:
        self._is_array, self._data = is_array, data
        self._shuffle_state: ShuffleState | None = None
        self._read: Any = None
        self._dataset = getattr(iterator, "_dataset", None)
        self.doubt = "" if is_array or self._dataset is None else doubt_of(self._dataset)
        if is_array or self._dataset is None or self.doubt:
            return
        try:
            self._shuffle_state = ShuffleState(self._dataset)
        except StateError as error:
            self.doubt = str(error)

    def doubt_with(self, validation: Any) -> str:
        """Return why the position cannot be restored with this validation data; empty if it can.

        An iterator that continues over epochs is prefetched while validation draws, in an unknown order.
        """
        if share_a_shuffle(self._dataset, validation):
            return "validation draws from a shuffle that is read ahead meanwhile: split the data before you shuffle"
        return ""

    def place(self, iterator: Any) -> Array:
        """Return the position of an iterator, or, without one, of the next one to be made. Independent.

        Raises
        ------
        StateError
            If TensorFlow cannot save such an iterator; says why.
        """
        if self._shuffle_state is None:
            state = read_iterator(iterator, is_ignoring=self._is_array) if iterator is not None else NO_STATE
            return self._packed(state) if state.size else NO_STATE
        return self._packed(*self._at_rest(iterator, self._shuffle_state), self._shuffle_state.seeds)

    def _packed(self, state: Array, counts: list[int] | None = None, seeds: Seeds | None = None) -> Array:
        return pack({"iterator": state}, {"draws": counts, "seeds": seeds, "data": dict(self._data)})

    def _at_rest(self, iterator: Any, draws: ShuffleState) -> tuple[Array, list[int] | None]:
        """Return an iterator's state, and the counts of draws at that time unless the state has them."""
        until, before = time.monotonic() + PATIENCE_S, None
        while time.monotonic() < until:
            state = NO_STATE if iterator is None else read_iterator(iterator)
            if draws.are_in(state):
                return state, None
            counts = draws.read()
            if counts == before:
                return state, counts
            before = counts
        raise StateError("the pipeline draws on and on, though nothing is read of it")

    def go_to(self, iterator: Any, place: Array) -> None:
        """Move an unread iterator to a position. Independent.

        Raises
        ------
        StateError
            If the place is not one of this pipeline.
        """
        state, counts, seeds = _unpacked(place)
        if seeds != (self._shuffle_state.seeds if self._shuffle_state is not None else None):
            raise StateError("the position was saved by another input pipeline: it has other shuffles, or other seeds")
        if state.size:
            write_iterator(iterator, state)  # draws once more, and may set counts of draws that were saved
        if self._shuffle_state is not None and counts is not None:
            self._shuffle_state.write(counts)
        if not state.size:
            restart(iterator)

    def seek(self, iterator: Any, batch: int) -> bool:
        """Move an unread iterator to a batch of its epoch; return False if this data has to be read to get there.

        Independent.
        """
        from_batch = getattr(self._dataset, _FROM_BATCH, None)
        if from_batch is None or self._shuffle_state is None:
            return False
        self._shuffle_state.take_back()  # of this epoch, whose order is drawn once more
        self._read = from_batch(batch)  # kept: its functions live as long as it does
        restart(iterator, self._read)
        return True


def data_of(place: Array) -> Data:
    """Return what the data was like whose place this is; nothing if that was not saved. Pure."""
    try:
        return dict(unpack(place)[1].get("data") or {}) if place.size else {}
    except CorruptError:
        return {}  # `Pipeline.go_to` reports it


def differences(before: Data, now: Data) -> str:
    """Return in which respects the data differs from what it was like, as far as both are known. Pure."""
    known = [name for name in before if name in now and before[name] != now[name]]
    return ", ".join(f"{name} {before[name]} -> {now[name]}" for name in known)


def _unpacked(place: Array) -> tuple[Array, list[int] | None, Seeds | None]:
    try:
        arrays, more = unpack(place)
        return arrays["iterator"], more["draws"], more["seeds"]
    except (CorruptError, KeyError) as error:
        raise StateError("the position was saved by an earlier version of this library") from error
