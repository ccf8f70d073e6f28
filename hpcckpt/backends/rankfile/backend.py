"""``rankfile``: each rank writes one safetensors file, straight from the tensors' memory.

Writing, on each rank:

    a. open ``data/rank-NNNNN.safetensors``: a file of a retired step, if one is there that has no other
       name and that no other program has open, is invalidated by zeros over its header, and synced, before
       anything else is written over; else a new file is created
    b. write the data after the place of the header, computing checksums in the same pass, and release
       each tensor as soon as it is written
    c. write the header, which holds the checksums
    d. sync the file, and the directory if a file was created in it

Tensors that did not change since the newest step are not among them: before a, they are linked from it, or
written once more, in the same manner, into a file of their own, ``data/rank-NNNNN.frozen-K.safetensors``,
which the next steps link.
"""

from __future__ import annotations

import functools
import itertools
import os
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcckpt import native
from hpcckpt.backends.base import Backend, Payload, ReadRequest
from hpcckpt.backends.data_files import make_room, write_payloads
from hpcckpt.backends.rankfile import format as codec
from hpcckpt.backends.rankfile.frozen import frozen_path, link_unchanged, worth_a_file
from hpcckpt.backends.rankfile.known import Key, KnownHeaders
from hpcckpt.backends.reusing import keep_own_files, open_to_write
from hpcckpt.backends.spans import read_spans
from hpcckpt.core import failpoints, files
from hpcckpt.core.files import open_regular
from hpcckpt.core.plan import DamagedBlock, FileRecord, Index, SaveJob, StoredEntry, WriteItem, WriteReport
from hpcckpt.errors import CorruptError
from hpcckpt.format import layout
from hpcckpt.format.manifest import Manifest

_known = KnownHeaders()
os.register_at_fork(after_in_child=_known.forget)


def file_path(rank: int) -> str:
    """Return the path of a rank's file in its step directory."""
    return f"{layout.DATA}/rank-{rank:05d}.safetensors"


class RankfileBackend(Backend):
    """One safetensors file per rank."""

    name = "rankfile"
    features = frozenset({"partial-read", "zero-copy", "recycles", "incremental", "own-files"})

    def prepare(self, path: Path, file_layout: Any = None) -> None:  # noqa: ARG002 - none is needed
        """Create the data directory. Root only."""
        (path / layout.DATA).mkdir()

    def reuse(self, path: Path, n_ranks: int, file_layout: Any = None) -> None:  # noqa: ARG002
        """Keep the ranks' own files, if they have no other name. Root only."""
        keep_own_files(path, map(file_path, range(n_ranks)))

    def write(
        self, job: SaveJob, path: Path, rank: int, payloads: Sequence[Payload], base: Path | None = None
    ) -> WriteReport:
        """Write this rank's file, and unchanged tensors into separate files; durable on return. Independent."""
        items = [payload.item for payload in payloads]
        linked = link_unchanged(payloads, base, path) if base is not None else []
        linked_nbytes = sum(payload.item.nbytes for payload in payloads if payload.record is not None)
        frozen = [*linked, *self._write_unchanged(job, path, rank, worth_a_file(payloads), linked)]
        rest = [payload for payload in payloads if payload.record is None]
        record, is_new = self._write_file(job, path, _File(file_path(rank), rank, rest, tuple(frozen)))
        if is_new or frozen:
            native.fsync_dir(str(path / layout.DATA))
        failpoints.reached("2-synced", rank)
        return WriteReport.of((record, *frozen), items, linked_nbytes)

    def _write_unchanged(
        self, job: SaveJob, path: Path, rank: int, payloads: Sequence[Payload], linked: Sequence[FileRecord]
    ) -> list[FileRecord]:
        """Write tensors that did not change since the newest step, but have no file of their own there."""
        if not payloads:
            return []
        record, _ = self._write_file(job, path, _File(frozen_path(rank, linked), rank, payloads, is_frozen=True))
        return [record]

    def _write_file(self, job: SaveJob, path: Path, file: _File) -> tuple[FileRecord, bool]:
        """Write one file, durable on return; return its record, and whether it was created."""
        where = str(path / file.path)
        fd, is_new = open_to_write(where, is_forced=self.is_recycling_forced)  # step a
        try:
            record = self._fill(fd, job, path, file)
            failpoints.reached("2-written", file.rank)
            native.fdatasync(fd, where)  # step d
        finally:
            os.close(fd)
        return record, is_new

    def _fill(self, fd: int, job: SaveJob, path: Path, file: _File) -> FileRecord:
        where = str(path / file.path)
        items = [payload.item for payload in file.payloads]
        header = codec.encode_header(job, file.rank, items, file.frozen)
        end = len(header) + sum(item.nbytes for item in items)
        make_room(fd, end, where)
        if os.fstat(fd).st_size > end:
            os.ftruncate(fd, end)
        offsets = [*itertools.accumulate((item.nbytes for item in items), initial=len(header))]
        crcs = write_payloads(  # step b
            fd,
            [*zip(file.payloads, offsets, strict=False)],
            block_bytes=job.block_bytes,
            threads=self.threads,
            nice=self.nice,
            where=where,
        )
        sealed = codec.fill_in(header, crcs, native.crc32c)
        native.write_blocks(fd, [(sealed, 0)], path=where)  # step c
        record = FileRecord(file.path, end, codec.sealed_crc(sealed), job.save_id if file.is_frozen else "")
        shared = (record, len(items)) if file.is_frozen else ()
        for payload, blocks in zip(file.payloads, crcs, strict=True):
            payload.written(blocks, *shared)
        key = Key(record, record.save_id or job.save_id, job.n_ranks, job.block_bytes)
        # what is kept must not hold the payloads, and so their buffers
        _known.keep(
            key, memoryview(sealed)[8:], functools.partial(_entries, items, file.rank, file.path, offsets, crcs)
        )
        return record

    def index(self, path: Path, manifest: Manifest) -> Index:
        """Read the headers of all files. Independent."""
        found: dict[str, list[StoredEntry]] = defaultdict(list)
        for record in manifest.files:
            for entry in read_header(path, record, manifest):
                found[entry.item.spec.name].append(entry)
        return {name: tuple(entries) for name, entries in sorted(found.items())}

    def read(self, path: Path, manifest: Manifest, requests: Sequence[ReadRequest]) -> list[DamagedBlock]:
        """Read block by block, whole blocks straight into the requests' buffers. Independent."""
        return read_spans(path, requests, manifest.block_bytes, self.threads)


@dataclass(frozen=True, slots=True, eq=False)
class _File:
    """A file to write: its path in the step, whose it is, what goes into it, and which files it goes with."""

    path: str
    rank: int
    payloads: Sequence[Payload]
    frozen: tuple[FileRecord, ...] = ()
    is_frozen: bool = False


def _entries(
    items: Sequence[WriteItem], rank: int, path: str, offsets: Sequence[int], crcs: Sequence[Sequence[int]]
) -> list[StoredEntry]:
    """Return where the items of a file were written."""
    return [
        StoredEntry(item, rank, path, offset, tuple(blocks))
        for item, blocks, offset in zip(items, crcs, offsets, strict=False)
    ]


def read_header(path: Path, record: FileRecord, manifest: Manifest) -> Sequence[StoredEntry]:
    """Read and check the header of one file, and that the entries end where the file ends. Independent."""
    fd = open_regular(str(path / record.path))
    try:
        nbytes = os.fstat(fd).st_size
        if nbytes != record.nbytes:
            raise CorruptError(f"{record.path} has {nbytes} bytes instead of {record.nbytes}; use an older step")
        length = codec.header_length(files.read_at(fd, 8, 0), nbytes, record.path)
        header = files.read_at(fd, length, 8)
    finally:
        os.close(fd)
    key = Key(record, record.save_id or manifest.save_id, manifest.n_ranks, manifest.block_bytes)
    entries = _known.find(key, header)
    if entries is None:
        decoded = codec.decode_header(header, nbytes, record, manifest, native.crc32c)
        _known.keep(key, memoryview(header), lambda: decoded)
        return decoded
    return entries
