"""Reading HDF5 checkpoints of every driver: by the table at the end of each file, without MPI and without h5py.

A file is untrusted input.  Nothing in it is followed: no external link, no external storage, no virtual dataset; the
table says which bytes of this very file an entry is.  What HDF5 would need to find the same bytes is checked against
its checksum, so a file that other programs would misread is not a good one for us either.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from hpcckpt.backends.base import ReadRequest
from hpcckpt.backends.hdf5.chunks import read_chunked
from hpcckpt.backends.hdf5.table import CHUNKED, TRAILER_BYTES, Decoded, Span, crc_of, decode, read_trailer
from hpcckpt.backends.spans import read_spans
from hpcckpt.discovery import open_regular
from hpcckpt.errors import CorruptError
from hpcckpt.manifest import Manifest
from hpcckpt.plan import DamagedBlock, FileRecord, Index, StoredEntry

_READ_BYTES = 4 << 20


def read_index(path: Path, manifest: Manifest) -> Index:
    """Read the tables of all files. Independent.

    Raises
    ------
    CorruptError
        If a table or a structure is damaged, or not of this save.
    """
    found: dict[str, list[StoredEntry]] = defaultdict(list)
    for record in manifest.files:
        for entry in read_table(path, record, manifest).entries:
            found[entry.item.spec.name].append(entry)
    return {name: tuple(entries) for name, entries in sorted(found.items())}


def read_table(path: Path, record: FileRecord, manifest: Manifest) -> Decoded:
    """Read and check the table of one file, and the checksum of its structure. Independent."""
    fd = open_regular(str(path / record.path))
    try:
        nbytes = os.fstat(fd).st_size
        if nbytes != record.nbytes:
            raise CorruptError(f"{record.path} has {nbytes} bytes instead of {record.nbytes}; use an older step")
        line_at = max(0, nbytes - TRAILER_BYTES)
        trailer = read_trailer(os.pread(fd, TRAILER_BYTES, line_at), nbytes, record.path)
        decoded = decode(b"".join(_parts(fd, trailer.at, trailer.at + trailer.nbytes)), trailer, record, manifest)
        if structure_crc(fd, decoded.structure) != decoded.structure_crc:
            raise CorruptError(f"{record.path}: the structure of the HDF5 file is damaged; use an older step")
    finally:
        os.close(fd)
    return decoded


def structure_crc(fd: int, spans: Sequence[Span]) -> int:
    """Return the CRC32C of parts of a file, one after the other. Independent."""
    return crc_of(part for start, stop in spans for part in _parts(fd, start, stop))


def _parts(fd: int, start: int, stop: int) -> Iterator[bytes]:
    while start < stop:
        part = os.pread(fd, min(_READ_BYTES, stop - start), start)
        if not part:
            raise CorruptError("the file is cut short while it is read; use an older step")
        yield part
        start += len(part)


def read(path: Path, manifest: Manifest, requests: Sequence[ReadRequest], threads: int) -> list[DamagedBlock]:
    """Fill the requests' buffers, verifying each block; return the damaged ones. Independent."""
    in_one_piece = [request for request in requests if request.entry.offset != CHUNKED]
    damaged = read_spans(path, in_one_piece, manifest.block_bytes, threads)
    by_file: dict[str, list[ReadRequest]] = defaultdict(list)
    for request in requests:
        if request.entry.offset == CHUNKED:
            by_file[request.entry.file].append(request)
    records = {record.path: record for record in manifest.files}
    for file, wanted in sorted(by_file.items()):
        chunked = read_table(path, records[file], manifest).chunked
        damaged += read_chunked(path, file, wanted, chunked, manifest.block_bytes, threads)
    return damaged
