"""Where a ``tf.data`` pipeline stands, as bytes, and back: what its iterator read, and how often its shuffles drew."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from hpcckpt.errors import CorruptError, StateError
from hpcckpt.keras.draws import Draws, doubt_of, share_a_shuffle
from hpcckpt.keras.iterators import NO_STATE, begin_anew, read_iterator, write_iterator
from hpcckpt.keras.packing import pack, unpack
from hpcckpt.snapshot import Array

Data = Mapping[str, Any]
Seeds = list[list[int]]
PATIENCE_S = 60.0
"""How long it may take until nothing is drawn while the place is read; reading ahead ends when a buffer is full."""


class Pipeline:
    """A pipeline whose first iterator was made, and nothing read of it.

    Parameters
    ----------
    iterator : tf.data.Iterator
        Its iterator.
    is_array : bool
        Whether Keras itself has made it, of arrays.
    data : mapping
        What its position depends on; saved with it, see `Feed.data`.

    Attributes
    ----------
    doubt : str
        Why its place cannot be found again; empty as long as nothing speaks against it.
    """

    def __init__(self, iterator: Any, *, is_array: bool, data: Data) -> None:
        self._is_array, self._data = is_array, data
        self._draws: Draws | None = None
        self._dataset = getattr(iterator, "_dataset", None)
        self.doubt = "" if is_array or self._dataset is None else doubt_of(self._dataset)
        if is_array or self._dataset is None or self.doubt:
            return
        try:
            self._draws = Draws(self._dataset)
        except StateError as error:
            self.doubt = str(error)

    def doubt_beside(self, validation: Any) -> str:
        """Return why the place cannot be found again if this is validated on; empty if it can.

        What goes on over epochs is read ahead while validation draws: which of them is first, nobody knows.
        """
        if share_a_shuffle(self._dataset, validation):
            return "validation draws from a shuffle that is read ahead meanwhile: split the data before you shuffle"
        return ""

    def place(self, iterator: Any) -> Array:
        """Return the place of an iterator, or without one that of the next to be made. Independent.

        Raises
        ------
        StateError
            If TensorFlow cannot save such an iterator; says why.
        """
        if self._draws is None:
            state = read_iterator(iterator, is_ignoring=self._is_array) if iterator is not None else NO_STATE
            return self._packed(state) if state.size else NO_STATE
        return self._packed(*self._at_rest(iterator, self._draws), self._draws.seeds)

    def _packed(self, state: Array, counts: list[int] | None = None, seeds: Seeds | None = None) -> Array:
        return pack({"iterator": state}, {"draws": counts, "seeds": seeds, "data": dict(self._data)})

    def _at_rest(self, iterator: Any, draws: Draws) -> tuple[Array, list[int] | None]:
        """Return an iterator's state, and what had drawn just then, as far as that does not stand in it."""
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
        """Have an iterator, which nothing was read of, go on from a place. Independent.

        Raises
        ------
        StateError
            If the place is not one of this pipeline.
        """
        state, counts, seeds = _unpacked(place)
        if seeds != (self._draws.seeds if self._draws is not None else None):
            raise StateError("the position was saved by another input pipeline: it has other shuffles, or other seeds")
        if state.size:
            write_iterator(iterator, state)  # draws once more, and maybe sets what had drawn when it was saved
        if self._draws is not None and counts is not None:
            self._draws.write(counts)
        if not state.size:
            begin_anew(iterator)


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
