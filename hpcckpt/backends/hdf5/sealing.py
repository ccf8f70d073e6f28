"""What ``mpio`` finds in the file when all ranks have written: where HDF5 has put everything; the table; a last look.

Some MPI libraries lose errors of collective writes (Open MPI 4.1 prints them, and reports success), so each rank reads
back what it wrote, and compares checksums.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hpcckpt import native
from hpcckpt.backends.base import ReadRequest
from hpcckpt.backends.hdf5.chunks import read_chunked
from hpcckpt.backends.hdf5.driver import MASTER
from hpcckpt.backends.hdf5.image import gaps, opened
from hpcckpt.backends.hdf5.options import Hdf5Options
from hpcckpt.backends.hdf5.reading import structure_crc
from hpcckpt.backends.hdf5.structure import TABLE, Structure
from hpcckpt.backends.hdf5.table import CHUNKED, FILTERS, TRAILER_BYTES, Chunks, Span, Table, seal
from hpcckpt.backends.hdf5.transfers import MpioFileLayout
from hpcckpt.backends.spans import read_spans
from hpcckpt.core.plan import SaveJob, StoredEntry, WriteItem
from hpcckpt.core.tensors import itemsize
from hpcckpt.errors import StorageError

_BATCH_BYTES = 32 << 20


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """Where HDF5 has put everything.

    Attributes
    ----------
    offsets : dict of str to int
        Where the bytes of each dataset begin that is in one piece.
    chunked : dict of str to Chunks
        The chunks of the others.
    data : tuple of tuple of int
        Which parts of the file are data.
    """

    offsets: Mapping[str, int]
    chunked: Mapping[str, Chunks]
    data: tuple[Span, ...]

    def offset_of(self, file_layout: MpioFileLayout, item: WriteItem, rank: int) -> int:
        """Return where the bytes of an item are, or that they are in chunks."""
        path, element = file_layout.position(item, rank)
        if path in self.chunked and item.nbytes:
            return CHUNKED
        return self.offsets.get(path, 0) + element * itemsize(item.spec.dtype) if item.nbytes else 0


def look(where: str, file_layout: MpioFileLayout, options: Hdf5Options) -> Found:
    """Look where everything is. Independent."""
    with io.FileIO(where, "r") as file, opened(file, "r") as structure:
        return _found(structure, file_layout, options)


def complete(where: str, file_layout: MpioFileLayout, options: Hdf5Options) -> Found:
    """Put tensors together of boxes, and look where everything is. Root only."""
    with io.FileIO(where, "r+") as file, opened(file, "r+") as structure:
        for virtual in file_layout.virtual:
            structure.virtual(virtual)
        return _found(structure, file_layout, options)


def _found(structure: Structure, file_layout: MpioFileLayout, options: Hdf5Options) -> Found:
    filters = FILTERS if options.compression is not None else ()
    offsets: dict[str, int] = {}
    chunked: dict[str, Chunks] = {}
    data: list[Span] = []
    for each in file_layout.stored:
        shape = file_layout.chunks.get(each.path)
        if shape is not None:
            places = structure.chunk_places(each.path, shape)
            chunked[each.path] = Chunks(each.spec, shape, filters, places)
            data += [(at, at + nbytes) for at, nbytes, _ in places]
        elif each.nbytes:
            offsets[each.path] = at = structure.offset(each.path)
            data.append((at, at + each.nbytes))
    return Found(offsets, chunked, tuple(sorted(data)))


def check_written(path: Path, entries: Sequence[StoredEntry], found: Found, job: SaveJob, threads: int) -> None:
    """Read back what a rank wrote. Independent.

    Raises
    ------
    StorageError
        Naming the tensors that are not there as they were written.
    """
    by_tensor = {chunks.spec.name: chunks for chunks in found.chunked.values()}
    bad: set[str] = set()
    for batch in _batches(entries, job.block_bytes):
        in_one_piece = [request for request in batch if request.entry.offset != CHUNKED]
        in_chunks = [request for request in batch if request.entry.offset == CHUNKED]
        damaged = read_spans(path, in_one_piece, job.block_bytes, threads)
        if in_chunks:
            damaged += read_chunked(path, MASTER, in_chunks, by_tensor, job.block_bytes, threads)
        bad |= {block.tensor for block in damaged}
    if bad:
        raise StorageError(
            f"{MASTER}: {', '.join(sorted(bad))}: MPI-IO reported success, and other bytes are in the file than were "
            "written; look for its messages (is the disk full?), or take driver='direct'"
        )


def _batches(entries: Sequence[StoredEntry], block_bytes: int) -> Iterator[list[ReadRequest]]:
    """Yield requests for all bytes of entries, some at a time, into memory that is used again."""
    step = max(block_bytes, _BATCH_BYTES // block_bytes * block_bytes)
    room = np.empty(min(step, sum(entry.nbytes for entry in entries)), np.uint8)
    batch: list[ReadRequest] = []
    used = 0
    for entry in entries:
        for start in range(0, entry.nbytes, step):
            stop = min(entry.nbytes, start + step)
            if used + stop - start > room.nbytes:
                yield batch
                batch, used = [], 0
            batch.append(ReadRequest(entry, start, stop, room[used : used + stop - start]))
            used += stop - start
    if batch:
        yield batch


def add_table(where: str, table: Table, found: Found) -> tuple[int, int]:
    """Put the table at the end of a file, durably; return the length of the file, and the table's checksum. Root only.

    Through a plain file object HDF5 puts what is new after everything else; with its own file access it would not.
    """
    with io.FileIO(where, "r+") as file:
        begin = file.seek(0, os.SEEK_END)
        spans = list(gaps(found.data, 0, begin))
        text_nbytes = len(table.text([*spans, (0, 0)], 0)) + TRAILER_BYTES
        with opened(file, "r+") as structure:
            structure.text(TABLE, text_nbytes)
        with opened(file, "r+") as structure:
            at = structure.allocate(TABLE)
        spans.append((begin, at))
        sealed = seal(table.text(spans, structure_crc(file.fileno(), spans)), at)
        native.write_blocks(file.fileno(), [(sealed.text, at)], path=where)
        nbytes = os.fstat(file.fileno()).st_size
        if nbytes != at + text_nbytes or at < begin:
            raise AssertionError("the table must be the end of the file")
        native.fsync(file.fileno(), where)
    return nbytes, sealed.crc
