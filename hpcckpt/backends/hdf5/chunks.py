"""Reading entries whose tensor is in chunks, packed or not, without HDF5; the file is not trusted."""

from __future__ import annotations

import itertools
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hpcckpt import native
from hpcckpt.backends.base import Bytes, ReadRequest
from hpcckpt.backends.hdf5.table import Chunks
from hpcckpt.collective.sharding import boxes_of_span, intersect
from hpcckpt.core import files
from hpcckpt.core.files import open_regular
from hpcckpt.core.plan import DamagedBlock, StoredEntry
from hpcckpt.core.tensors import Extent, itemsize
from hpcckpt.core.threads import map_in_threads

_STEP_BYTES = 32 << 20


class _BadChunkError(Exception):
    """A chunk cannot be unpacked."""


def read_chunked(
    path: Path,
    file: str,
    requests: Sequence[ReadRequest],
    chunked: Mapping[str, Chunks],
    block_bytes: int,
    threads: int,
) -> list[DamagedBlock]:
    """Fill the requests' buffers from the chunks of one file; return the damaged blocks. Independent.

    Parameters
    ----------
    path : pathlib.Path
        The step directory.
    file : str
        The file in it.
    requests : sequence of ReadRequest
        What is wanted.
    chunked : dict of str to Chunks
        The chunks of each tensor.
    block_bytes : int
        Bytes per checksum.
    threads : int
        Threads that unpack.
    """
    fd = open_regular(str(path / file))
    try:
        reader = _Reader(fd, threads, block_bytes)
        return [bad for r in requests for bad in reader.read(r, chunked[r.entry.item.spec.name])]
    finally:
        os.close(fd)


class _Reader:
    """Reads from one open file."""

    def __init__(self, fd: int, threads: int, block_bytes: int) -> None:
        self._fd = fd
        self._threads = threads
        self._block_bytes = block_bytes

    def read(self, request: ReadRequest, chunks: Chunks) -> Iterator[DamagedBlock]:
        """Fill a buffer from whole blocks, a few at a time; yield the damaged ones."""
        block = self._block_bytes
        step = max(block, _STEP_BYTES // block * block)
        first = request.start // block * block
        last = min(request.entry.nbytes, -(-request.stop // block) * block)
        for begin in range(first, last if request.stop > request.start else first, step):
            end = min(begin + step, last)
            try:
                data = self._assemble(request.entry, chunks, begin, end)
            except _BadChunkError as error:
                yield DamagedBlock(request.entry.item.spec.name, request.entry.file, begin, end - begin, str(error))
                continue
            yield from self._bad_blocks(request.entry, data, begin)
            start, stop = max(begin, request.start), min(end, request.stop)
            request.into[start - request.start : stop - request.start] = data[start - begin : stop - begin]

    def _bad_blocks(self, entry: StoredEntry, data: Bytes, begin: int) -> Iterator[DamagedBlock]:
        expected = entry.crcs[begin // self._block_bytes :]
        for number, crc in enumerate(native.crc32c_blocks(data, self._block_bytes)):
            if crc != expected[number]:
                at = number * self._block_bytes
                nbytes = min(self._block_bytes, data.nbytes - at)
                name = entry.item.spec.name
                yield DamagedBlock(name, entry.file, begin + at, nbytes, "checksum mismatch (bytes counted unpacked)")

    def _assemble(self, entry: StoredEntry, chunks: Chunks, begin: int, end: int) -> Bytes:
        """Return the bytes `begin` to `end` of an entry."""
        item = entry.item
        width = itemsize(item.spec.dtype)
        first, last = begin // width, -(-end // width)
        whole = np.empty(last - first, f"V{width}")
        position = 0
        for box in boxes_of_span(item.extent.shape, item.start + first, item.start + last):
            offset = tuple(a + b for a, b in zip(box.offset, item.extent.offset, strict=True))
            target = whole[position : position + box.n_elements].reshape(box.shape)
            self._fill(target, Extent(offset, box.shape), chunks)
            position += box.n_elements
        return whole.view(np.uint8)[begin - first * width : end - first * width]

    def _fill(self, target: npt.NDArray[Any], box: Extent, chunks: Chunks) -> None:
        sides = zip(box.offset, box.shape, chunks.shape, strict=True)
        ranges = [range(start // side, -(-(start + length) // side)) for start, length, side in sides]
        map_in_threads(lambda index: self._copy(target, box, chunks, index), itertools.product(*ranges), self._threads)

    def _copy(self, target: npt.NDArray[Any], box: Extent, chunks: Chunks, index: tuple[int, ...]) -> None:
        """Unpack one chunk, and copy what it shares with a box."""
        placed = Extent(tuple(i * side for i, side in zip(index, chunks.shape, strict=True)), chunks.shape)
        shared = intersect(placed, box)
        if shared is not None:
            number = int(np.ravel_multi_index(index, chunks.counts))
            target[_inside(shared, box)] = self._unpacked(chunks, number)[_inside(shared, placed)]

    def _unpacked(self, chunks: Chunks, number: int) -> npt.NDArray[Any]:
        at, nbytes, mask = chunks.places[number]
        data = files.read_at(self._fd, nbytes, at)
        applied = chunks.applied(mask)
        if "deflate" in applied:
            data = _inflate(data, chunks.nbytes)
        if len(data) != chunks.nbytes:
            raise _BadChunkError(f"chunk {number}, at byte {at} of the file, has another size than it should")
        width = itemsize(chunks.spec.dtype)
        if "shuffle" in applied:
            data = np.frombuffer(data, np.uint8).reshape(width, -1).T.tobytes()
        return np.frombuffer(data, f"V{width}").reshape(chunks.shape)


def _inflate(data: bytes, nbytes: int) -> bytes:
    try:
        return zlib.decompressobj().decompress(data, nbytes)
    except zlib.error as error:
        raise _BadChunkError(f"a chunk cannot be unpacked ({error})") from error


def _inside(shared: Extent, box: Extent) -> tuple[slice, ...]:
    """Return where a part of a box is in it."""
    starts = (a - b for a, b in zip(shared.offset, box.offset, strict=True))
    return tuple(slice(start, start + length) for start, length in zip(starts, shared.shape, strict=True))
