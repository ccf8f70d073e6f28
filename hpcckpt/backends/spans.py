"""Reading parts of entries that lie in a file in one piece each: block by block, verified, as few bytes as can be."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hpcckpt import native
from hpcckpt.backends.base import Bytes, ReadRequest
from hpcckpt.core.files import open_regular
from hpcckpt.core.plan import DamagedBlock, StoredEntry


def read_spans(path: Path, requests: Sequence[ReadRequest], block_bytes: int, threads: int) -> list[DamagedBlock]:
    """Fill the requests' buffers, whole blocks straight from the files; return the damaged blocks. Independent.

    Parameters
    ----------
    path : pathlib.Path
        The step directory.
    requests : sequence of ReadRequest
        What is wanted of which entries.
    block_bytes : int
        Bytes per checksum.
    threads : int
        Native threads that read.
    """
    by_file: dict[str, list[ReadRequest]] = defaultdict(list)
    for request in requests:
        by_file[request.entry.file].append(request)
    damaged = []
    for file, wanted in sorted(by_file.items()):
        damaged += _read_file(path, file, block_bytes, wanted, threads)
    return damaged


def _read_file(path: Path, file: str, block_bytes: int, wanted: list[ReadRequest], threads: int) -> list[DamagedBlock]:
    pieces = [piece for request in wanted for piece in _pieces(request, block_bytes)]
    native_pieces = [(piece.into, piece.offset, piece.crcs) for piece in pieces]
    where = str(path / file)
    fd = open_regular(where)
    try:
        bad = native.read_blocks(fd, native_pieces, block_bytes=block_bytes, threads=threads, path=where)
    except EOFError as error:
        return [DamagedBlock(pieces[0].entry.item.spec.name, file, 0, 0, f"the file is cut short ({error})")]
    finally:
        os.close(fd)
    for piece in pieces:
        piece.deliver()
    return [_damaged(pieces[number], block, block_bytes) for number, block in bad]


class _Piece(NamedTuple):
    """Whole blocks of an entry to read, and, where only a part of a block is wanted, where that part goes."""

    entry: StoredEntry
    first_block: int
    into: Bytes
    offset: int
    crcs: tuple[int, ...]
    part: slice | None = None
    destination: Bytes | None = None

    def deliver(self) -> None:
        """Copy the wanted part of a block out of the scratch buffer it was read to."""
        if self.destination is not None and self.part is not None:
            self.destination[:] = self.into[self.part]


def _pieces(request: ReadRequest, block_bytes: int) -> Iterator[_Piece]:
    """Split a request into whole blocks, read in place, and partly wanted blocks, read to scratch."""
    entry, position = request.entry, request.start
    if position == 0 and 0 < request.stop == entry.nbytes:  # all of it, as it mostly is
        yield _Piece(entry, 0, request.into, entry.offset, entry.crcs)
        return
    while position < request.stop:
        block, inside = divmod(position, block_bytes)
        if inside == 0 and (end := _whole_blocks_end(request, position, block_bytes)) > position:
            into = request.into[position - request.start : end - request.start]
            crcs = request.entry.crcs[block : -(-end // block_bytes)]
            yield _Piece(request.entry, block, into, request.entry.offset + position, crcs)
        else:
            end = min((block + 1) * block_bytes, request.stop)
            yield _partial_piece(request, block, position, end, block_bytes)
        position = end


def _whole_blocks_end(request: ReadRequest, position: int, block_bytes: int) -> int:
    """Return where the whole blocks from `position` on end; the entry's last block may be short."""
    if request.stop == request.entry.nbytes:
        return request.stop
    return max(position, request.stop // block_bytes * block_bytes)


def _partial_piece(request: ReadRequest, block: int, begin: int, end: int, block_bytes: int) -> _Piece:
    block_start = block * block_bytes
    scratch = np.empty(min(block_bytes, request.entry.nbytes - block_start), np.uint8)
    return _Piece(
        request.entry,
        block,
        scratch,
        request.entry.offset + block_start,
        request.entry.crcs[block : block + 1],
        slice(begin - block_start, end - block_start),
        request.into[begin - request.start : end - request.start],
    )


def _damaged(piece: _Piece, block: int, block_bytes: int) -> DamagedBlock:
    start = block * block_bytes
    nbytes = min(block_bytes, piece.into.nbytes - start)
    name = piece.entry.item.spec.name
    return DamagedBlock(name, piece.entry.file, piece.offset + start, nbytes, "checksum mismatch")
