"""From a wanted box of a tensor to the bytes of the entries that make it up.

A stored entry is a span of a box.  A span is a few boxes that are contiguous in the file
(:func:`~hpcckpt.collective.sharding.boxes_of_span`); each is cut with the wanted box.  Where the cut
is contiguous both in the file and in the target, it is read straight into the target; else the
stretch of the file that holds it is read to a scratch buffer and picked out with strides.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hpcckpt.backends.base import ReadRequest
from hpcckpt.collective.sharding import boxes_of_span, flat_index, intersect, strides
from hpcckpt.core.plan import StoredEntry
from hpcckpt.core.tensors import Extent, itemsize
from hpcckpt.state.tree import as_bytes

Array = npt.NDArray[Any]


class ReadTransfer(NamedTuple):
    """One read, and what to copy out of it afterwards (nothing, when it went straight to its place)."""

    request: ReadRequest
    n_elements: int
    source: Array | None = None
    destination: Array | None = None

    def finish(self) -> None:
        """Copy what was read to a scratch buffer to its place."""
        if self.destination is not None:
            self.destination[...] = self.source


def plan_transfers(entries: Iterable[StoredEntry], wanted: Extent, target: Array) -> Iterator[ReadTransfer]:
    """Yield the reads that fill `target`, a C-contiguous array of the shape of the box `wanted`. Pure."""
    for entry in entries:
        item, position = entry.item, 0
        if item.extent == wanted:  # as it mostly is: one stretch here and there
            width = itemsize(item.spec.dtype)
            into = as_bytes(target)[item.start * width : item.stop * width]
            yield ReadTransfer(ReadRequest(entry, 0, entry.nbytes, into), item.stop - item.start)
            continue
        for box in boxes_of_span(item.extent.shape, item.start, item.stop):
            placed = Extent(_plus(box.offset, item.extent.offset), box.shape)
            shared = intersect(placed, wanted)
            if shared is not None:
                yield _transfer(entry, position, placed, shared, wanted, target)
            position += box.n_elements


def _plus(a: Sequence[int], b: Sequence[int]) -> tuple[int, ...]:
    return tuple(x + y for x, y in zip(a, b, strict=True))


def _minus(a: Sequence[int], b: Sequence[int]) -> tuple[int, ...]:
    return tuple(x - y for x, y in zip(a, b, strict=True))


def _stretch(shape: tuple[int, ...], box: Extent) -> tuple[int, int]:
    """Return the flat range of an array of `shape` from the first to after the last element of `box`."""
    first = flat_index(shape, box.offset)
    last = flat_index(shape, [o + n - 1 for o, n in zip(box.offset, box.shape, strict=True)])
    return first, last + 1


def _transfer(
    entry: StoredEntry, position: int, placed: Extent, shared: Extent, wanted: Extent, target: Array
) -> ReadTransfer:
    """Plan the read of the box `shared`, a part of the box `placed` that begins at `position` in an entry."""
    width = itemsize(entry.item.spec.dtype)
    in_source = Extent(_minus(shared.offset, placed.offset), shared.shape)
    in_target = Extent(_minus(shared.offset, wanted.offset), shared.shape)
    begin, end = _stretch(placed.shape, in_source)
    to_begin, to_end = _stretch(wanted.shape, in_target)
    start, stop = (position + begin) * width, (position + end) * width
    if end - begin == to_end - to_begin == shared.n_elements:
        into = as_bytes(target)[to_begin * width : to_end * width]
        return ReadTransfer(ReadRequest(entry, start, stop, into), shared.n_elements)
    scratch = np.empty(end - begin, target.dtype)
    steps = tuple(stride * width for stride in strides(placed.shape))
    source = np.lib.stride_tricks.as_strided(scratch, shared.shape, steps, writeable=False)
    slices = tuple(slice(o, o + n) for o, n in zip(in_target.offset, in_target.shape, strict=True))
    return ReadTransfer(ReadRequest(entry, start, stop, as_bytes(scratch)), shared.n_elements, source, target[slices])
