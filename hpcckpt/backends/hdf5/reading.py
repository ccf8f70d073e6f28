"""Reading HDF5 checkpoints of every driver: by the table at the end of each file, without MPI and without h5py.

A file is untrusted input.  Nothing in it is followed: no external link, no external storage, no virtual dataset; the
table says which bytes of this very file an entry is.  What HDF5 would need to find the same bytes is checked against
its checksum, so a file that other programs would misread is not a good one for us either.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from hpcckpt.backends.base import ReadRequest
from hpcckpt.backends.hdf5.chunks import read_chunked
from hpcckpt.backends.hdf5.table import CHUNKED, TRAILER_BYTES, Chunks, Decoded, Span, crc_of, decode, read_trailer
from hpcckpt.backends.spans import read_spans
from hpcckpt.core import files
from hpcckpt.core.files import open_regular
from hpcckpt.core.plan import DamagedBlock, FileRecord, Index, StoredEntry
from hpcckpt.errors import CorruptError
from hpcckpt.format.manifest import Manifest

_READ_BYTES = 4 << 20
_MOST_REMEMBERED = 4


class _Remembered(NamedTuple):
    """The chunks that a table lists, and what shows that it is still that table."""

    stamp: tuple[object, ...]
    chunked: Mapping[str, Chunks]


class Tables:
    """Reads tables, and remembers what the last ones say of chunks for as long as the files stay as they are."""

    def __init__(self) -> None:
        self._known: dict[str, _Remembered] = {}

    def read(self, path: Path, record: FileRecord, manifest: Manifest) -> Decoded:
        """Read and check the table of a file. Independent."""
        where = str(path / record.path)
        stamp = _stamp(where, record, manifest)
        decoded = read_table(path, record, manifest)
        if decoded.chunked:
            kept = list(self._known.items())[1 - _MOST_REMEMBERED :]
            self._known = {**dict(kept), where: _Remembered(stamp, decoded.chunked)}
        return decoded

    def chunked(self, path: Path, record: FileRecord, manifest: Manifest) -> Mapping[str, Chunks]:
        """Return the chunks of each tensor in a file, reading its table only if it was not read before. Independent."""
        where = str(path / record.path)
        known = self._known.get(where)
        if known is not None and known.stamp == _stamp(where, record, manifest):
            return known.chunked
        return self.read(path, record, manifest).chunked


def _stamp(where: str, record: FileRecord, manifest: Manifest) -> tuple[object, ...]:
    """Return what changes with a file, and with what is asked of it. Independent."""
    found = os.lstat(where)
    of_file = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
    return (*of_file, record, manifest.save_id, manifest.n_ranks, manifest.block_bytes)


def read_index(path: Path, manifest: Manifest, tables: Tables) -> Index:
    """Read the tables of all files. Independent.

    Raises
    ------
    CorruptError
        If a table or a structure is damaged, or not of this save.
    """
    found: dict[str, list[StoredEntry]] = defaultdict(list)
    for record in manifest.files:
        for entry in tables.read(path, record, manifest).entries:
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
        trailer = read_trailer(files.read_at(fd, TRAILER_BYTES, line_at), nbytes, record.path)
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
        part = files.read_at(fd, min(_READ_BYTES, stop - start), start)
        if not part:
            raise CorruptError("the file is cut short while it is read; use an older step")
        yield part
        start += len(part)


def read(
    path: Path, manifest: Manifest, requests: Sequence[ReadRequest], threads: int, tables: Tables
) -> list[DamagedBlock]:
    """Fill the requests' buffers, verifying each block; return the damaged ones. Independent."""
    in_one_piece = [request for request in requests if request.entry.offset != CHUNKED]
    damaged = read_spans(path, in_one_piece, manifest.block_bytes, threads)
    by_file: dict[str, list[ReadRequest]] = defaultdict(list)
    for request in requests:
        if request.entry.offset == CHUNKED:
            by_file[request.entry.file].append(request)
    records = {record.path: record for record in manifest.files}
    for file, wanted in sorted(by_file.items()):
        chunked = tables.chunked(path, records[file], manifest)
        damaged += read_chunked(path, file, wanted, chunked, manifest.block_bytes, threads)
    return damaged
