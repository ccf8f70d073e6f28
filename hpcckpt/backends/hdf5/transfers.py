"""Writing the data of ``mpio`` through HDF5, all ranks together: which datasets, in which order, how often.

Every rank writes into a dataset as often as the one that has most to write there, with nothing if need be.  A rank that
cannot write still takes part, with nothing, so that the others need not wait for it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from hpcckpt.backends.base import Bytes, Payload
from hpcckpt.backends.hdf5 import library
from hpcckpt.backends.hdf5.arrangement import Place, StoredDataset, Virtual, first_element
from hpcckpt.backends.hdf5.options import Hdf5Options
from hpcckpt.backends.hdf5.structure import Structure
from hpcckpt.backends.hdf5.types import file_type
from hpcckpt.collective.sharding import boxes_of_span
from hpcckpt.core.plan import FullPlan, WriteItem
from hpcckpt.core.tensors import itemsize

MAX_TRANSFER_BYTES = 1 << 30
"""MPI counts bytes in 31 bits."""


@dataclass(frozen=True, slots=True)
class MpioFileLayout:
    """The datasets, in the order in which all ranks create and write them.

    Attributes
    ----------
    stored : tuple of StoredDataset
        The datasets.
    virtual : tuple of Virtual
        Tensors that root puts together.
    places : dict of str to Place
        In which dataset a shared tensor is.
    own : dict of (int, str) to str
        In which one a rank's own value is.
    chunks : dict of str to tuple of int
        The shape of the chunks of those datasets that have any.
    n_transfers : dict of str to int
        How often all ranks write into a dataset.
    alignment : int
        Where tensors begin.
    """

    stored: tuple[StoredDataset, ...]
    virtual: tuple[Virtual, ...]
    places: Mapping[str, Place]
    own: Mapping[tuple[int, str], str]
    chunks: Mapping[str, tuple[int, ...]]
    n_transfers: Mapping[str, int]
    alignment: int
    driver: str = "mpio"

    def position(self, item: WriteItem, rank: int) -> tuple[str, int]:
        """Return the dataset that an item is in, and at which element of it the item begins."""
        if item.spec.kind == "per-rank":
            return self.own[rank, item.spec.name], 0
        return self.places[item.spec.name].position(item)


class WriteTransfer(NamedTuple):
    """A part of an item that is written at once."""

    item: WriteItem
    first: int
    last: int
    data: Bytes


def _pieces(item: WriteItem) -> Iterator[tuple[int, int]]:
    """Yield the parts of an item that one transfer may have: first and last element."""
    step = max(1, MAX_TRANSFER_BYTES // max(1, itemsize(item.spec.dtype)))
    for first in range(item.start, item.stop, step):
        yield first, min(first + step, item.stop)


def count_transfers(plan: FullPlan, places: Mapping[str, Place], own: Mapping[tuple[int, str], str]) -> dict[str, int]:
    """Return how often the rank that has most to write into a dataset writes into it."""
    most: dict[str, int] = defaultdict(int)
    for rank, items in enumerate(plan.items):
        theirs: dict[str, int] = defaultdict(int)
        for item in items:
            is_own = item.spec.kind == "per-rank"
            path = own[rank, item.spec.name] if is_own else places[item.spec.name].position(item)[0]
            theirs[path] += len(list(_pieces(item))) if item.nbytes else 0
        for path, count in theirs.items():
            most[path] = max(most[path], count)
    return dict(most)


def transfers_of(file_layout: MpioFileLayout, rank: int, payloads: Sequence[Payload]) -> dict[str, list[WriteTransfer]]:
    """Return what this rank writes into each dataset."""
    found: dict[str, list[WriteTransfer]] = defaultdict(list)
    for payload in payloads:
        item = payload.item
        width = itemsize(item.spec.dtype)
        if item.nbytes:
            for first, last in _pieces(item):
                data = payload.data[(first - item.start) * width : (last - item.start) * width]
                found[file_layout.position(item, rank)[0]].append(WriteTransfer(item, first, last, data))
    return found


class Writing:
    """The writes of all ranks into the datasets of an open file."""

    def __init__(self, structure: Structure, file_layout: MpioFileLayout, options: Hdf5Options) -> None:
        h5 = library.load()
        self._h5 = h5
        self._structure = structure
        self._file_layout = file_layout
        self._options = options
        self._datasets: dict[str, Any] = {}
        self._dxpl = h5.h5p.create(h5.h5p.DATASET_XFER)
        self._dxpl.set_dxpl_mpio(h5.h5fd.MPIO_COLLECTIVE if options.collective else h5.h5fd.MPIO_INDEPENDENT)

    def create(self) -> None:
        """Create all datasets. Collective."""
        for each in self._file_layout.stored:
            dcpl = self._structure.creation()
            dcpl.set_alloc_time(self._h5.h5d.ALLOC_TIME_EARLY)
            if each.path in self._file_layout.chunks:
                dcpl.set_chunk(self._file_layout.chunks[each.path])
            if each.path in self._file_layout.chunks and self._options.compression is not None:
                dcpl.set_shuffle()
                dcpl.set_deflate(self._options.compression_level)
            self._datasets[each.path] = self._structure.stored(each, dcpl)

    def end(self) -> int:
        """Return where the data end, if nothing can be packed. Independent."""
        in_chunks, end = 0, 0
        for each in self._file_layout.stored:
            chunk = self._file_layout.chunks.get(each.path)
            if chunk is not None:
                counts = (-(-length // side) for length, side in zip(each.shape, chunk, strict=True))
                in_chunks += math.prod(counts) * math.prod(chunk) * itemsize(each.spec.dtype)
            elif each.nbytes:
                end = max(end, int(self._datasets[each.path].get_offset()) + each.nbytes)
        return end + in_chunks

    def write(self, transfers: Mapping[str, Sequence[WriteTransfer]]) -> Exception | None:
        """Write, and return the first failure: a rank that fails then takes part with nothing. Collective."""
        failure: Exception | None = None
        for each in self._file_layout.stored:
            own = transfers.get(each.path, ())
            n_transfers = self._file_layout.n_transfers.get(each.path, 0) if self._options.collective else len(own)
            for number in range(n_transfers):
                transfer = own[number] if number < len(own) and failure is None else None
                failed = self._write(each, transfer)
                failure = failure or failed
        self._datasets.clear()
        return failure

    def _write(self, stored: StoredDataset, transfer: WriteTransfer | None) -> Exception | None:
        """Write a part of a dataset, or take part with nothing; return what failed. Collective."""
        failure: Exception | None = None
        try:
            call = self._selected(stored, transfer) if transfer is not None else self._nothing(stored)
        except Exception as error:  # noqa: BLE001 - the others must not wait
            failure, call = error, self._nothing(stored)
        memory, space, data = call
        dataset = self._datasets[stored.path]
        try:
            dataset.write(memory, space, data, dataset.get_type(), self._dxpl)
        except Exception as error:  # noqa: BLE001 - the others must not wait
            failure = failure or error
        return failure

    def _selected(self, stored: StoredDataset, transfer: WriteTransfer) -> tuple[Any, Any, Any]:
        """Return what goes where of a transfer: the space in memory, that in the file, the data."""
        space = self._datasets[stored.path].get_space()
        _select(self._h5.h5s, space, stored, transfer)
        memory = self._h5.h5s.create_simple((space.get_select_npoints(),))
        return memory, space, np.ascontiguousarray(transfer.data)

    def _nothing(self, stored: StoredDataset) -> tuple[Any, Any, Any]:
        """Return the same of no elements."""
        dataset = self._datasets[stored.path]
        space, memory = dataset.get_space(), self._h5.h5s.create_simple((1,))
        space.select_none()
        memory.select_none()
        return memory, space, np.empty(dataset.get_type().get_size(), np.uint8)


def _select(h5s: Any, space: Any, stored: StoredDataset, transfer: WriteTransfer) -> None:
    """Select the elements of a part of an item in the space of its dataset."""
    item, n_dims = transfer.item, space.get_simple_extent_ndims()
    _, added = file_type(item.spec.dtype)
    if n_dims == 0:
        return
    if n_dims != len(stored.shape) + len(added):  # it is stored flat
        first = transfer.first + (first_element(item) if stored.extent != item.extent else 0)
        space.select_hyperslab((first, *(0 for _ in added)), (transfer.last - transfer.first, *added))
        return
    base = [a - b for a, b in zip(item.extent.offset, stored.extent.offset, strict=True)]
    how = h5s.SELECT_SET
    for box in boxes_of_span(item.extent.shape, transfer.first, transfer.last):
        offset = (a + b for a, b in zip(box.offset, base, strict=True))
        space.select_hyperslab((*offset, *(0 for _ in added)), (*box.shape, *added), op=how)
        how = h5s.SELECT_OR
