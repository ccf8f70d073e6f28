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

from hpcckpt.errors import CorruptError, Problem, list_problems
from hpcckpt.manifest import Manifest, encode_record, shape_problem
from hpcckpt.plan import FileRecord, SaveJob, StoredEntry, WriteItem, block_count
from hpcckpt.tensors import KINDS, Extent, TensorSpec, itemsize, name_problem

MAX_HEADER_BYTES = 100_000_000
PAGE_BYTES = 4096
_CRC_KEY = "hpcckpt.header_crc32c"
_DOCUMENT_KEY = "hpcckpt"
_HEAD = re.compile(rb'\{"__metadata__":\{"hpcckpt\.header_crc32c":"([0-9a-f]{8})"')
_CRC_AT = slice(42, 50)
_CODES = {
    "bool": "BOOL", "int8": "I8", "int16": "I16", "int32": "I32", "int64": "I64",
    "uint8": "U8", "uint16": "U16", "uint32": "U32", "uint64": "U64",
    "float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64",
    "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
}  # fmt: skip

Crc = Callable[[bytes], int]


# -- writing -------------------------------------------------------------------------------------


def entry_name(item: WriteItem) -> str:
    """Return the name of an entry in its file: the tensor's own if the entry is the whole tensor."""
    extent, spec = item.extent, item.spec
    is_whole_box = (item.start, item.stop) == (0, extent.n_elements)
    name = spec.name
    if spec.kind != "per-rank" and extent != Extent.whole(spec.shape):
        name += f"[{','.join(f'{o}:{o + n}' for o, n in zip(extent.offset, extent.shape, strict=True))}]"
    return name if is_whole_box else f"{name}@{item.start}:{item.stop}"


def entry_names(items: Sequence[WriteItem]) -> list[str]:
    """Return a name for each entry, all different: one that a whole tensor has is not for parts of another."""
    taken = {item.spec.name for item in items}
    names = []
    for item in items:
        name = entry_name(item)
        while name != item.spec.name and name in taken:
            name += "~"
        taken.add(name)
        names.append(name)
    return names


def _safetensors_type(item: WriteItem) -> tuple[str, list[int]]:
    """Return the safetensors dtype code and shape; dtypes it does not know are stored as bytes."""
    is_whole_box = (item.start, item.stop) == (0, item.extent.n_elements)
    shape = list(item.extent.shape) if is_whole_box else [item.stop - item.start]
    code = _CODES.get(item.spec.dtype)
    return (code, shape) if code else ("U8", [*shape, itemsize(item.spec.dtype)])


def encode_header(
    job: SaveJob,
    rank: int,
    items: Sequence[WriteItem],
    crcs: Sequence[Sequence[int]] | None,
    crc: Crc,
    frozen: Sequence[FileRecord] = (),
) -> bytes:
    """Return length word and header, padded to whole pages.

    Parameters
    ----------
    job : SaveJob
        Identity of the save.
    rank : int
        The rank whose file it is.
    items : sequence of WriteItem
        The entries, in the order of their data.
    crcs : sequence of sequence of int, optional
        Checksums per entry and block; zeros if not given, for the length.
    crc : callable
        CRC32C of bytes.
    frozen : sequence of FileRecord
        The rank's other files in this step, whose tensors did not change.
    """
    counts = [block_count(item.nbytes, job.block_bytes) for item in items]
    known = crcs if crcs is not None else [[0] * count for count in counts]
    entries: dict[str, Any] = {}
    table: dict[str, Any] = {}
    position = 0
    for name, item, blocks in zip(entry_names(items), items, known, strict=True):
        code, shape = _safetensors_type(item)
        table[name] = {"dtype": code, "shape": shape, "data_offsets": [position, position + item.nbytes]}
        entries[name] = _encode_entry(item, blocks)
        position += item.nbytes
    document = {
        "format": 1,
        "save_id": job.save_id,
        "step": job.step,
        "rank": rank,
        "ranks": job.n_ranks,
        "block_bytes": job.block_bytes,
        **({"frozen": [encode_record(record) for record in frozen]} if frozen else {}),
        "entries": entries,
    }
    metadata = {_CRC_KEY: "00000000", _DOCUMENT_KEY: _compact(document)}
    return _seal(_compact({"__metadata__": metadata, **table}).encode(), crc)


def _compact(document: Any) -> str:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False)


def _encode_entry(item: WriteItem, crcs: Sequence[int]) -> dict[str, Any]:
    return {
        "tensor": item.spec.name,
        "kind": item.spec.kind,
        "dtype": item.spec.dtype,
        "global_shape": list(item.spec.shape),
        "offset": list(item.extent.offset),
        "shape": list(item.extent.shape),
        "span": [item.start, item.stop],
        "crc32c": "".join(f"{value:08x}" for value in crcs),
    }


def _seal(header: bytes, crc: Crc) -> bytes:
    """Pad a header to whole pages, put its length before it and its CRC into it."""
    header += b" " * (-(len(header) + 8) % PAGE_BYTES)
    sealed = header[: _CRC_AT.start] + b"%08x" % crc(header) + header[_CRC_AT.stop :]
    return struct.pack("<Q", len(sealed)) + sealed


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
        If the header is damaged, belongs to another save, or says what cannot be; names every problem.
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
    found: list[StoredEntry] = []
    for name, entry in document["entries"].items():
        message = _entry_problem(entry) or _place_problem(entry, table.get(name), file_bytes - data_start, manifest)
        if message:
            problems.append(Problem(f"entry {name!r}", message))
            continue
        offset = data_start + table[name]["data_offsets"][0]
        crcs = bytes.fromhex(entry["crc32c"])
        found.append(StoredEntry(_item(entry), rank, path, offset, struct.unpack(f">{len(crcs) // 4}I", crcs)))
    problems.extend(_overlaps(found))
    return found


def _overlaps(entries: Sequence[StoredEntry]) -> Iterator[Problem]:
    """Yield the entries that share bytes: a small file could give tensors beyond any memory."""
    end = 0
    for entry in sorted(entries, key=lambda entry: (entry.offset, entry.nbytes)):
        if entry.nbytes and entry.offset < end:
            yield Problem(f"entry of {entry.item.spec.name!r}", f"shares bytes from {entry.offset} on with another one")
        end = max(end, entry.offset + entry.nbytes)


def _item(entry: Mapping[str, Any]) -> WriteItem:
    spec = TensorSpec(entry["tensor"], entry["dtype"], tuple(entry["global_shape"]), entry["kind"])
    return WriteItem(spec, Extent(tuple(entry["offset"]), tuple(entry["shape"])), *entry["span"])


def _entry_problem(entry: Any) -> str | None:
    """Say what is wrong with an entry by itself, or ``None``."""
    if not isinstance(entry, dict):
        return "must be an object"
    tensor, span, crcs = entry.get("tensor"), entry.get("span"), entry.get("crc32c")
    if not isinstance(tensor, str) or name_problem(tensor):
        return f"tensor name {tensor!r} is not allowed"
    if entry.get("kind") not in KINDS:
        return f"kind {entry.get('kind')!r} is not known"
    dtype, global_shape, shape = entry.get("dtype"), entry.get("global_shape"), entry.get("shape")
    problem = shape_problem(dtype, global_shape) or (shape_problem(dtype, shape) if shape != global_shape else None)
    if problem:
        return problem
    offset = entry.get("offset")
    if not isinstance(offset, list) or not all(isinstance(n, int) and n >= 0 for n in offset):
        return "offset must be a list of sizes"
    extent = Extent(tuple(offset), tuple(entry["shape"]))
    if not extent.fits(tuple(entry["global_shape"])) and entry["kind"] != "per-rank":
        return "the extent leaves the tensor"
    if not (isinstance(span, list) and len(span) == 2 and all(isinstance(n, int) for n in span)):
        return "span must be two numbers"
    if not 0 <= span[0] <= span[1] <= extent.n_elements:
        return f"span {span} leaves the extent"
    is_hex = isinstance(crcs, str) and re.fullmatch("(?:[0-9a-f]{8})*", crcs) is not None
    return None if is_hex else "crc32c must be hexadecimal digits"


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
