"""The table at the end of our HDF5 files: what is where, for readers that need no HDF5. Pure: no I/O.

It is the dataset ``/__hpcckpt__/table``, one string: a JSON document, and a line of a fixed length that says where the
document is.  As it is the last thing in the file, a reader begins with that line.  The document says which save the
file belongs to, the place and the CRC32C of each block of each entry, and the CRC32C of the *structure*: of all that
HDF5 itself needs to find the datasets.  So a bit that flips anywhere is noticed, or means nothing.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, TypeGuard

from hpcckpt import native
from hpcckpt.backends.entries import decode_crcs, decode_item, encode_entry, entry_problem, overlap_problems
from hpcckpt.core.plan import FileRecord, SaveJob, StoredEntry, block_count
from hpcckpt.core.tensors import TensorSpec, itemsize
from hpcckpt.errors import CorruptError, FormatVersionError, Problem, StateError, list_problems
from hpcckpt.format.manifest import Manifest

FORMAT = 1
MAX_TABLE_BYTES = 1 << 29
MAX_STRUCTURE_BYTES = 1 << 30
MAX_CHUNK_BYTES = 1 << 28
MAX_PACKED = 1032
"""Bytes that deflate makes of one at most: no chunk can be larger than its stored bytes times this."""
TRAILER_BYTES = 60
CHUNKED = -1
"""The offset of an entry that is not in one piece, but in the chunks of its tensor."""
FILTERS = ("shuffle", "deflate")
_TRAILER = re.compile(rb"\nhpcckpt-table-1 ([0-9a-f]{16}) ([0-9a-f]{16}) ([0-9a-f]{8})\n")
_SPAN = re.compile("([0-9a-f]{16})-([0-9a-f]{16})")

Span = tuple[int, int]


class Sealed(NamedTuple):
    """The bytes of the dataset, and the CRC32C of the document in it."""

    text: bytes
    crc: int


@dataclass(frozen=True, slots=True)
class Chunks:
    """A tensor that is stored in chunks.

    Attributes
    ----------
    spec : TensorSpec
        The tensor.
    shape : tuple of int
        Shape of a chunk; those at the ends are whole in the file, too.
    filters : tuple of str
        What each chunk went through, in that order.
    places : tuple of tuple of int
        Offset, bytes and filter mask of each chunk, in C order of the chunks.
    """

    spec: TensorSpec
    shape: tuple[int, ...]
    filters: tuple[str, ...]
    places: tuple[tuple[int, int, int], ...]

    @property
    def nbytes(self) -> int:
        """Bytes of one chunk, unpacked."""
        return math.prod(self.shape) * itemsize(self.spec.dtype)

    def applied(self, mask: int) -> list[str]:
        """Return the filters that a chunk with this mask went through."""
        return [name for bit, name in enumerate(self.filters) if not mask >> bit & 1]

    @property
    def counts(self) -> tuple[int, ...]:
        """How many chunks there are along each axis."""
        return tuple(-(-n // m) for n, m in zip(self.spec.shape, self.shape, strict=True))


@dataclass(frozen=True, slots=True)
class Table:
    """What a file holds.

    Attributes
    ----------
    job : SaveJob
        The save that wrote it.
    driver : str
        How.
    entries : tuple of StoredEntry
        What is where; with the offset `CHUNKED` if it is in chunks.
    chunked : tuple of Chunks
        The tensors that are in chunks.
    """

    job: SaveJob
    driver: str
    entries: Sequence[StoredEntry] = ()
    chunked: Sequence[Chunks] = ()

    def text(self, structure: Sequence[Span], structure_crc: int) -> bytes:
        """Return the document; its length depends on the number of spans only, not on where they are."""
        spans = [f"{start:016x}-{stop:016x}" for start, stop in structure]
        document = {
            "format": FORMAT,
            "save_id": self.job.save_id,
            "step": self.job.step,
            "ranks": self.job.n_ranks,
            "block_bytes": self.job.block_bytes,
            "driver": self.driver,
            "structure": {"crc32c": f"{structure_crc:08x}", "spans": spans},
            "entries": [
                {"rank": entry.rank, "at": entry.offset, **encode_entry(entry.item, entry.crcs)}
                for entry in self.entries
            ],
            **({"chunked": [_encode_chunks(chunks) for chunks in self.chunked]} if self.chunked else {}),
        }
        return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()


def _encode_chunks(chunks: Chunks) -> dict[str, Any]:
    return {
        "tensor": chunks.spec.name,
        "dtype": chunks.spec.dtype,
        "global_shape": list(chunks.spec.shape),
        "chunk": list(chunks.shape),
        "filters": list(chunks.filters),
        "places": [list(place) for place in chunks.places],
    }


def seal(text: bytes, at: int) -> Sealed:
    """Return a document with the line that says where it is.

    Raises
    ------
    StateError
        If readers would refuse a document of this size.
    """
    if len(text) > MAX_TABLE_BYTES:
        raise StateError(f"the table would have {len(text)} bytes, more than readers take: use larger chunks")
    crc = native.crc32c(text)
    return Sealed(text + b"\nhpcckpt-table-1 %016x %016x %08x\n" % (at, len(text), crc), crc)


def crc_of(parts: Iterable[bytes]) -> int:
    """Return the CRC32C of parts, one after the other."""
    crc = 0
    for part in parts:
        crc = native.crc32c(part, crc)
    return crc


# -- reading ---------------------------------------------------------------------------------------


class Trailer(NamedTuple):
    """Where the document is, and its CRC32C."""

    at: int
    nbytes: int
    crc: int


def read_trailer(line: bytes, file_bytes: int, where: str) -> Trailer:
    """Return what the last line of a file says, bounded before anything is allocated.

    Raises
    ------
    CorruptError
        If there is no such line, or it has impossible values.
    """
    found = _TRAILER.fullmatch(line)
    if found is None:
        raise CorruptError(f"{where}: not an HDF5 file of hpcckpt, or cut off; use an older step")
    at, nbytes, crc = (int(part, 16) for part in found.groups())
    if at + nbytes + TRAILER_BYTES != file_bytes or nbytes > MAX_TABLE_BYTES:
        raise CorruptError(f"{where}: its table cannot be at byte {at}, {nbytes} long; use an older step")
    return Trailer(at, nbytes, crc)


@dataclass(frozen=True, slots=True)
class Decoded:
    """A table, and what it says of the structure of the file."""

    entries: tuple[StoredEntry, ...]
    chunked: Mapping[str, Chunks]
    structure: tuple[Span, ...]
    structure_crc: int


def decode(text: bytes, trailer: Trailer, record: FileRecord, manifest: Manifest) -> Decoded:
    """Return the table that a document is.

    Raises
    ------
    CorruptError
        If it is damaged, belongs to another save, or has impossible values; names every problem.
    FormatVersionError
        If it is of a newer format.
    """
    if native.crc32c(text) != trailer.crc:
        raise CorruptError(f"{record.path}: its table is damaged; use an older step")
    if trailer.crc != record.header_crc:
        raise CorruptError(f"{record.path}: not the file that the manifest names (stale or swapped); use an older step")
    document = _parse(text, record.path)
    save_id = record.save_id or manifest.save_id
    if document.get("save_id") != save_id:
        raise CorruptError(f"{record.path}: belongs to save {document.get('save_id')!r}, not {save_id!r}")
    problems: list[Problem] = []
    chunked = _chunks(document, trailer.at, problems)
    entries = _entries(document, record.path, trailer.at, manifest, chunked, problems)
    structure, structure_crc = _structure(document.get("structure"), trailer.at, problems)
    if problems:
        raise CorruptError(f"{record.path}: {list_problems(problems)}; use an older step")
    return Decoded(entries, chunked, structure, structure_crc)


def _parse(text: bytes, where: str) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CorruptError(f"{where}: its table cannot be read ({error}); use an older step") from None
    if not isinstance(document, dict) or not isinstance(document.get("entries"), list):
        raise CorruptError(f"{where}: its table has no list of entries; use an older step")
    version = document.get("format")
    if _is_count(version) and version > FORMAT:
        raise FormatVersionError(f"{where}: format {version} is newer than {FORMAT}; upgrade hpcckpt to read it")
    return document


def _is_count(value: Any) -> TypeGuard[int]:
    return type(value) is int and value >= 0


def _entries(
    document: Mapping[str, Any],
    path: str,
    end: int,
    manifest: Manifest,
    chunked: Mapping[str, Chunks],
    problems: list[Problem],
) -> tuple[StoredEntry, ...]:
    found: list[StoredEntry] = []
    for number, entry in enumerate(document["entries"]):
        message = entry_problem(entry) or _place_problem(entry, end, manifest, chunked)
        if message:
            problems.append(Problem(f"entry {number}", message))
        else:
            found.append(StoredEntry(decode_item(entry), entry["rank"], path, entry["at"], decode_crcs(entry)))
    in_one_piece = [entry for entry in found if entry.offset != CHUNKED]
    problems.extend(overlap_problems(in_one_piece))
    problems.extend(_chunk_overlaps(in_one_piece, chunked.values()))
    return tuple(found)


def _place_problem(entry: Mapping[str, Any], end: int, manifest: Manifest, chunked: Mapping[str, Chunks]) -> str | None:
    """Say what is wrong with where an entry's bytes are said to be, or ``None``."""
    rank, at = entry.get("rank"), entry.get("at")
    if not _is_count(rank) or rank >= manifest.n_ranks:
        return f"{rank!r} is not a rank of this save"
    nbytes = (entry["span"][1] - entry["span"][0]) * itemsize(entry["dtype"])
    if len(entry["crc32c"]) != 8 * block_count(nbytes, manifest.block_bytes):
        return "has the wrong number of checksums"
    if type(at) is int and at == CHUNKED:
        chunks = chunked.get(entry["tensor"])
        is_of_it = chunks is not None and (chunks.spec.dtype, list(chunks.spec.shape)) == (
            entry["dtype"],
            entry["global_shape"],
        )
        return None if is_of_it and entry["kind"] != "per-rank" else "is in chunks that there are not"
    if not _is_count(at) or at + nbytes > end:
        return f"{nbytes} bytes at {at!r} are not in the file"
    return None


def _decode_chunks(found: Mapping[str, Any], end: int) -> Chunks | str:
    """Return the chunks of a tensor, or what is wrong with them."""
    entry = {**found, "kind": "sharded", "span": [0, 0], "crc32c": "", "shape": found.get("global_shape")}
    entry["offset"] = [0] * len(entry["shape"]) if isinstance(entry["shape"], list) else None
    problem = entry_problem(entry)
    if problem:
        return problem
    shape, chunk, filters, places = (found.get(key) for key in ("global_shape", "chunk", "filters", "places"))
    width = itemsize(entry["dtype"])
    if not isinstance(chunk, list) or len(chunk) != len(entry["shape"]) or not chunk or not all(map(_is_size, chunk)):
        return "the shape of its chunks must be a list of sizes"
    if width == 0 or math.prod(chunk) * width > MAX_CHUNK_BYTES:
        return "its chunks are too large"
    if not isinstance(filters, list) or [name for name in FILTERS if name in filters] != filters:
        return f"filters must be of {', '.join(FILTERS)}"
    spec = TensorSpec(entry["tensor"], entry["dtype"], tuple(entry["shape"]), "sharded")
    if not isinstance(places, list) or len(places) != math.prod(Chunks(spec, tuple(chunk), (), ()).counts):
        return f"a tensor of shape {shape} has another number of chunks"
    if not all(isinstance(place, list) and len(place) == 3 and all(map(_is_count, place)) for place in places):
        return "each chunk must have offset, bytes and filter mask"
    if any(at + nbytes > end for at, nbytes, _ in places):
        return "a chunk is not in the file"
    chunks = Chunks(spec, tuple(chunk), tuple(filters), tuple(map(tuple, places)))
    if not all(_can_hold(chunks, nbytes, mask) for _, nbytes, mask in chunks.places):
        return f"a chunk cannot hold {chunks.nbytes} bytes"
    return chunks


def _can_hold(chunks: Chunks, nbytes: int, mask: int) -> bool:
    """Return True if `nbytes` of the file can hold a whole chunk: else a false table could make a reader allocate."""
    if "deflate" in chunks.applied(mask):
        return chunks.nbytes <= MAX_PACKED * nbytes
    return chunks.nbytes == nbytes


def _is_size(value: Any) -> bool:
    return _is_count(value) and value > 0


def _chunks(document: Mapping[str, Any], end: int, problems: list[Problem]) -> dict[str, Chunks]:
    found: dict[str, Chunks] = {}
    listed = document.get("chunked", [])
    if not isinstance(listed, list):
        problems.append(Problem("chunked", "must be a list"))
        return {}
    for number, each in enumerate(listed):
        chunks = _decode_chunks(each, end) if isinstance(each, dict) else "must be an object"
        if isinstance(chunks, str):
            problems.append(Problem(f"chunked {number}", chunks))
        else:
            found[chunks.spec.name] = chunks
    return found


def _chunk_overlaps(entries: Sequence[StoredEntry], chunked: Iterable[Chunks]) -> Iterator[Problem]:
    """Yield that chunks share bytes with something: packed bytes that count twice could fill any memory."""
    places = [(at, at + nbytes) for chunks in chunked for at, nbytes, _ in chunks.places if nbytes]
    if not places:
        return
    taken = sorted(places + [(entry.offset, entry.offset + entry.nbytes) for entry in entries if entry.nbytes])
    if any(start < end for (_, end), (start, _) in pairwise(taken)):
        yield Problem("chunked", "chunks share bytes with others")


def _structure(found: Any, end: int, problems: list[Problem]) -> tuple[tuple[Span, ...], int]:
    """Return the parts of the file that HDF5 itself needs, and their checksum."""
    spans, crc = (found.get("spans"), found.get("crc32c")) if isinstance(found, dict) else (None, None)
    matches = (
        [_SPAN.fullmatch(span) if isinstance(span, str) else None for span in spans]
        if isinstance(spans, list)
        else [None]
    )
    decoded = tuple((int(match[1], 16), int(match[2], 16)) for match in matches if match)
    ends = [0, *(position for span in decoded for position in span), end]
    is_sound = (
        len(decoded) == len(matches)
        and ends == sorted(ends)
        and sum(stop - start for start, stop in decoded) <= MAX_STRUCTURE_BYTES
    )
    if not is_sound or not isinstance(crc, str) or re.fullmatch("[0-9a-f]{8}", crc) is None:
        problems.append(Problem("structure", "must be parts of the file with a checksum"))
        return (), 0
    return decoded, int(crc, 16)
