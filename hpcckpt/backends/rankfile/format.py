"""The data files of ``rankfile``: bytes to records and back, no I/O. See FORMAT.md.

A file is a valid safetensors file.  Its ``__metadata__`` has two strings: the CRC32C of the header,
first and of fixed width, and a JSON document that says which save the file belongs to and, for each
entry, which part of which tensor it is and the CRC32C of each of its blocks.  The header's length
does not depend on any checksum, so data can be written before the checksums are known.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from hpcckpt.backends.entries import (
    crcs_of,
    decode_columns,
    decode_crcs,
    decode_item,
    encode_entry,
    entry_names,
    entry_problem,
    overlap_problems,
)
from hpcckpt.core.plan import FileRecord, SaveJob, StoredEntry, WriteItem, block_count
from hpcckpt.core.tensors import SAFETENSORS_CODES, itemsize
from hpcckpt.errors import CorruptError, Problem, StateError, list_problems
from hpcckpt.format.manifest import Manifest, encode_record

MAX_HEADER_BYTES = 100_000_000
PAGE_BYTES = 4096
_CRC_KEY = "hpcckpt.header_crc32c"
_DOCUMENT_KEY = "hpcckpt"
_HEAD = re.compile(rb'\{"__metadata__":\{"hpcckpt\.header_crc32c":"([0-9a-f]{8})"')
_CRC_AT = slice(42, 50)
_BEFORE_CRCS = rb"\"crc32c\":\""
"""The bytes before the checksums of an entry; with quotes that end a string, they are in no name."""

Crc = Callable[[bytes | bytearray], int]


# -- writing -------------------------------------------------------------------------------------


def _safetensors_type(item: WriteItem) -> tuple[str, list[int]]:
    """Return the safetensors dtype code and shape; dtypes it does not know are stored as bytes."""
    is_whole_box = (item.start, item.stop) == (0, item.extent.n_elements)
    shape = list(item.extent.shape) if is_whole_box else [item.stop - item.start]
    code = SAFETENSORS_CODES.get(item.spec.dtype)
    return (code, shape) if code else ("U8", [*shape, itemsize(item.spec.dtype)])


def _safetensors_table(names: Sequence[str], items: Sequence[WriteItem]) -> dict[str, Any]:
    """Return what readers of safetensors use: each entry after the previous one."""
    table: dict[str, Any] = {}
    position = 0
    for name, item in zip(names, items, strict=True):
        code, shape = _safetensors_type(item)
        end = position + item.nbytes
        table[name] = {"dtype": code, "shape": shape, "data_offsets": [position, end]}
        position = end
    return table


def encode_header(job: SaveJob, rank: int, items: Sequence[WriteItem], frozen: Sequence[FileRecord] = ()) -> bytes:
    """Return length word and header, padded to whole pages, with zeros for all checksums; see `fill_in`.

    Parameters
    ----------
    job : SaveJob
        Identity of the save.
    rank : int
        The rank whose file it is.
    items : sequence of WriteItem
        The entries, in the order of their data.
    frozen : sequence of FileRecord
        The rank's other files in this step, whose tensors did not change.

    Raises
    ------
    StateError
        If readers would refuse a header of this size.
    """
    names = entry_names(items)
    blocks = (block_count(item.nbytes, job.block_bytes) for item in items)
    document = {
        "format": 1,
        "save_id": job.save_id,
        "step": job.step,
        "rank": rank,
        "ranks": job.n_ranks,
        "block_bytes": job.block_bytes,
        **({"frozen": [encode_record(record) for record in frozen]} if frozen else {}),
        "entries": {name: encode_entry(item, [0] * n) for name, item, n in zip(names, items, blocks, strict=True)},
    }
    metadata = {_CRC_KEY: "00000000", _DOCUMENT_KEY: _compact(document)}
    header = _compact({"__metadata__": metadata, **_safetensors_table(names, items)}).encode()
    header += b" " * (-(len(header) + 8) % PAGE_BYTES)
    if len(header) > MAX_HEADER_BYTES:
        raise StateError(
            f"the header of {len(items)} tensors would have {len(header)} bytes, more than readers take: save fewer or "
            "larger tensors, or from more ranks"
        )
    return struct.pack("<Q", len(header)) + header


def _compact(document: Any) -> str:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False)


def fill_in(header: bytes, crcs: Sequence[Sequence[int]], crc: Crc) -> bytes:
    """Return a header with its checksums in their places, and then its own.

    Parameters
    ----------
    header : bytes
        As `encode_header` returned it.
    crcs : sequence of sequence of int
        Checksums per entry and block.
    crc : callable
        CRC32C of bytes.
    """
    filled, place = bytearray(header), 0
    for blocks in crcs:
        digits = struct.pack(f">{len(blocks)}I", *blocks).hex().encode()
        place = filled.index(_BEFORE_CRCS, place) + len(_BEFORE_CRCS)
        filled[place : place + len(digits)] = digits
    own = b"%08x" % crc(filled[8:])
    filled[8 + _CRC_AT.start : 8 + _CRC_AT.stop] = own
    return bytes(filled)


def sealed_crc(sealed: bytes) -> int:
    """Return the CRC that a sealed header carries."""
    return int(sealed[8 + _CRC_AT.start : 8 + _CRC_AT.stop], 16)


# -- reading -------------------------------------------------------------------------------------


def header_length(word: bytes, file_bytes: int, where: str) -> int:
    """Return the header's length from the first eight bytes, bounded before anything is allocated."""
    length: int = struct.unpack("<Q", word)[0] if len(word) == 8 else -1
    if not 2 <= length <= min(MAX_HEADER_BYTES, file_bytes - 8):
        raise CorruptError(f"{where}: header length {length} cannot be; the file is damaged, use an older step")
    return length


def decode_header(
    header: bytes, file_bytes: int, record: FileRecord, manifest: Manifest, crc: Crc
) -> list[StoredEntry]:
    """Return the entries of a file whose header this is.

    Raises
    ------
    CorruptError
        If the header is damaged, belongs to another save, or has impossible values; names every problem.
    """
    head = _HEAD.match(header)
    zeroed = header[: _CRC_AT.start] + b"00000000" + header[_CRC_AT.stop :]
    if head is None or crc(zeroed) != int(head[1], 16):
        raise CorruptError(f"{record.path}: the header is damaged; use an older step")
    if int(head[1], 16) != record.header_crc:
        raise CorruptError(f"{record.path}: not the file that the manifest names (stale or swapped); use an older step")
    table, document = _parse(header, record.path)
    save_id = record.save_id or manifest.save_id
    if document.get("save_id") != save_id:
        raise CorruptError(f"{record.path}: belongs to save {document.get('save_id')!r}, not {save_id!r}")
    problems: list[Problem] = []
    entries = _entries(table, document, len(header) + 8, file_bytes, record.path, manifest, problems)
    if problems:
        raise CorruptError(f"{record.path}: {list_problems(problems)}; use an older step")
    return entries


def read_document(header: bytes, where: str, crc: Crc) -> tuple[int, dict[str, Any]]:
    """Return the checksum and the document of a header, without a manifest to compare them with.

    Raises
    ------
    CorruptError
        If the header is damaged.
    """
    head = _HEAD.match(header)
    zeroed = header[: _CRC_AT.start] + b"00000000" + header[_CRC_AT.stop :]
    if head is None or crc(zeroed) != int(head[1], 16):
        raise CorruptError(f"{where}: the header is damaged; use an older step")
    return int(head[1], 16), _parse(header, where)[1]


def _parse(header: bytes, where: str) -> tuple[dict[str, Any], dict[str, Any]]:
    try:
        table = json.loads(header)
        document = json.loads(table.pop("__metadata__")[_DOCUMENT_KEY])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CorruptError(f"{where}: the header cannot be read ({error}); use an older step") from None
    if not isinstance(document, dict) or not isinstance(document.get("entries"), dict):
        raise CorruptError(f"{where}: the header has no list of entries; use an older step")
    return table, document


def _entries(
    table: Mapping[str, Any],
    document: Mapping[str, Any],
    data_start: int,
    file_bytes: int,
    path: str,
    manifest: Manifest,
    problems: list[Problem],
) -> list[StoredEntry]:
    rank = document.get("rank")
    if not isinstance(rank, int) or not 0 <= rank < manifest.n_ranks:
        problems.append(Problem("rank", f"{rank!r} is not a rank of this save"))
        return []
    names = [*document["entries"]]
    good = _entries_at_once(document["entries"], [table.get(name) for name in names], data_start, file_bytes, manifest)
    if good is not None:
        return [StoredEntry(item, rank, path, offset, crcs) for item, offset, crcs in good]
    found: list[StoredEntry] = []
    for name, entry in document["entries"].items():
        message = entry_problem(entry) or _place_problem(entry, table.get(name), file_bytes - data_start, manifest)
        if message:
            problems.append(Problem(f"entry {name!r}", message))
            continue
        offset = data_start + table[name]["data_offsets"][0]
        found.append(StoredEntry(decode_item(entry), rank, path, offset, decode_crcs(entry)))
    problems.extend(overlap_problems(found))
    return found


def _entries_at_once(
    entries: Mapping[str, Any], places: Sequence[Any], data_start: int, file_bytes: int, manifest: Manifest
) -> Iterator[tuple[WriteItem, int, tuple[int, ...]]] | None:
    """Return item, offset and checksums of each entry, or None if anything may be wrong with one."""
    columns = decode_columns([*entries.values()])
    if columns is None:
        return None
    try:
        begins, ends = np.array([_offsets_of(place) for place in places], np.int64).T
    except (KeyError, OverflowError, TypeError, ValueError):
        return None
    n_blocks = -(-columns.nbytes // manifest.block_bytes)
    is_placed = (begins >= 0) & (ends <= file_bytes - data_start) & (ends - begins == columns.nbytes)
    order = np.lexsort((ends, begins))
    order = order[columns.nbytes[order] > 0]
    is_apart = (begins[order][1:] >= ends[order][:-1]).all()
    if not (is_placed.all() and is_apart and [8 * n for n in n_blocks.tolist()] == [*map(len, columns.crcs)]):
        return None
    offsets = (begins + data_start).tolist()
    return zip(columns.items, offsets, map(crcs_of, columns.crcs), strict=True)


def _offsets_of(place: Any) -> list[int]:
    offsets: list[int] = place["data_offsets"]
    if type(place) is not dict or type(offsets) is not list or [*map(type, offsets)] != [int, int]:
        raise TypeError("not two integers")
    return offsets


def _place_problem(entry: Mapping[str, Any], place: Any, data_bytes: int, manifest: Manifest) -> str | None:
    """Say what is wrong with where an entry's bytes are said to be, or ``None``."""
    offsets = place.get("data_offsets") if isinstance(place, dict) else None
    if not (isinstance(offsets, list) and len(offsets) == 2 and all(isinstance(n, int) for n in offsets)):
        return "has no place in the file"
    nbytes = (entry["span"][1] - entry["span"][0]) * itemsize(entry["dtype"])
    if not (0 <= offsets[0] <= offsets[1] <= data_bytes and offsets[1] - offsets[0] == nbytes):
        return f"bytes {offsets} do not fit {nbytes} bytes of data in a file with {data_bytes}"
    if len(entry["crc32c"]) != 8 * block_count(nbytes, manifest.block_bytes):
        return "has the wrong number of checksums"
    return None
