"""A backend in a package of its own: each rank writes one file of raw bytes, and one that says what they are.

It is as plain as a backend can be, and keeps every promise: copy it, and change what you need.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict

from hpcckpt import native
from hpcckpt.backends.base import Backend
from hpcckpt.discovery import open_regular
from hpcckpt.errors import CorruptError
from hpcckpt.plan import DamagedBlock, FileRecord, StoredEntry, WriteItem, WriteReport
from hpcckpt.tensors import Extent, TensorSpec

MAX_TABLE_BYTES = 1 << 28


class RawBackend(Backend):
    """Two files per rank: ``data/rank-N.raw``, and ``data/rank-N.json`` with names, shapes and checksums."""

    name = "raw"
    features = frozenset({"zero-copy"})

    # -- saving ------------------------------------------------------------------------------------

    def prepare(self, path, design=None):
        (path / "data").mkdir()

    def write(self, job, path, rank, payloads, base=None):
        raw, table = path / f"data/rank-{rank}.raw", path / f"data/rank-{rank}.json"
        items, offsets = [payload.item for payload in payloads], []
        end = 0
        for item in items:
            offsets.append(end)
            end += item.nbytes
        crcs = _write_durably(
            raw, [(p.data, offset) for p, offset in zip(payloads, offsets, strict=True)], job.block_bytes, self
        )
        rows = [_row(item, offset, blocks) for item, offset, blocks in zip(items, offsets, crcs, strict=True)]
        text = json.dumps({"save_id": job.save_id, "rank": rank, "entries": rows}).encode()
        _write_durably(table, [(text, 0)], job.block_bytes, self)
        native.fsync_dir(str(path / "data"))
        for payload, blocks in zip(payloads, crcs, strict=True):
            payload.landed(blocks)
        records = (
            FileRecord(f"data/{raw.name}", end, 0),
            FileRecord(f"data/{table.name}", len(text), native.crc32c(text)),
        )
        return WriteReport.of(records, items)

    # -- reading -----------------------------------------------------------------------------------

    def index(self, path, manifest):
        found = defaultdict(list)
        for record in manifest.files:
            if record.path.endswith(".json"):
                for entry in _entries(path, record, manifest):
                    found[entry.item.spec.name].append(entry)
        return {name: tuple(entries) for name, entries in found.items()}

    def read(self, path, manifest, requests):
        damaged = []
        for request in requests:  # whole blocks: a checksum is that of a block
            size = manifest.block_bytes
            first, last = request.start // size * size, min(-(-request.stop // size) * size, request.entry.nbytes)
            buffer = bytearray(last - first)
            blocks = request.entry.crcs[first // size : -(-last // size)]
            damaged += self._read_blocks(path, request.entry, first, buffer, blocks, size)
            request.into[:] = memoryview(buffer)[request.start - first : request.stop - first]
        return damaged

    def _read_blocks(self, path, entry, first, buffer, crcs, size):
        where = str(path / entry.file)
        fd = open_regular(where)
        try:
            pieces = [(buffer, entry.offset + first, crcs)]
            bad = native.read_blocks(fd, pieces, block_bytes=size, threads=self.threads, path=where)
        except EOFError:
            return [DamagedBlock(entry.item.spec.name, entry.file, entry.offset, entry.nbytes, "the file is cut short")]
        finally:
            os.close(fd)
        name = entry.item.spec.name
        return [
            DamagedBlock(name, entry.file, entry.offset + first + b * size, size, "checksum mismatch") for _, b in bad
        ]


def _write_durably(path, pieces, block_bytes, backend):
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        crcs = native.write_blocks(fd, pieces, block_bytes=block_bytes, threads=backend.threads, path=str(path))
        native.fdatasync(fd, str(path))
    finally:
        os.close(fd)
    return [list(blocks) for blocks in crcs]


def _row(item, offset, crcs):
    spec, extent = item.spec, item.extent
    return [
        spec.name,
        spec.dtype,
        spec.shape,
        spec.kind,
        extent.offset,
        extent.shape,
        item.start,
        item.stop,
        offset,
        crcs,
    ]


def _entries(path, record, manifest):
    """Return what a table says; it may come from anybody, so nothing in it is believed before its checksum is."""
    fd = open_regular(str(path / record.path))
    try:
        text = os.pread(fd, min(record.nbytes, MAX_TABLE_BYTES), 0)
    finally:
        os.close(fd)
    if native.crc32c(text) != record.header_crc:
        raise CorruptError(f"{record.path} is damaged; use an older step")
    table = json.loads(text)
    if table["save_id"] != manifest.save_id:
        raise CorruptError(f"{record.path} is of another save; use an older step")
    raw = next(file for file in manifest.files if file.path == record.path.replace(".json", ".raw"))
    for name, dtype, shape, kind, offset, extent_shape, start, stop, at, crcs in table["entries"]:
        item = WriteItem(
            TensorSpec(name, dtype, tuple(shape), kind), Extent(tuple(offset), tuple(extent_shape)), start, stop
        )
        if not 0 <= at <= at + item.nbytes <= raw.nbytes:
            raise CorruptError(f"{record.path} points outside of {raw.path}; use an older step")
        yield StoredEntry(item, table["rank"], raw.path, at, tuple(crcs))
