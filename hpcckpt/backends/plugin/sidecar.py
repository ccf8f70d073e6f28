"""``data/rank-NNNNN.entries.json``: what a rank gave to its plugin, and the checksums. Bytes to records, no I/O."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hpcckpt.backends.entries import decode_crcs, decode_item, encode_entry, entry_problem
from hpcckpt.core.plan import FileRecord, SaveJob, StoredEntry, WriteItem, block_count
from hpcckpt.errors import CorruptError, Problem, StateError, list_problems
from hpcckpt.format import layout
from hpcckpt.format.manifest import Manifest

MAX_BYTES = 100_000_000
_PATH = re.compile(rf"{layout.DATA}/rank-([0-9]{{5,10}})\.entries\.json")
_HEAD = re.compile(rb'\{"crc32c":"([0-9a-f]{8})",')
_CRC_AT = slice(11, 19)

Crc = Callable[[bytes], int]


def sidecar_path(rank: int) -> str:
    """Return the path of a rank's sidecar in its step directory."""
    return f"{layout.DATA}/rank-{rank:05d}.entries.json"


def is_sidecar(path: str) -> bool:
    """Return True if a file of a step is a sidecar, not a file of the plugin."""
    return _PATH.fullmatch(path) is not None


def encode(
    job: SaveJob, rank: int, items: Sequence[WriteItem], crcs: Sequence[Sequence[int]], crc: Crc
) -> tuple[bytes, int]:
    """Return the text of a sidecar, and the CRC32C that it carries of itself.

    Parameters
    ----------
    job : SaveJob
        Identity of the save.
    rank : int
        Whose it is.
    items : sequence of WriteItem
        What was given to the plugin.
    crcs : sequence of sequence of int
        Checksums per entry and block.
    crc : callable
        CRC32C of bytes.

    Raises
    ------
    StateError
        If readers would refuse a text of this size.
    """
    document = {
        "crc32c": "00000000",
        "format": 1,
        "save_id": job.save_id,
        "step": job.step,
        "rank": rank,
        "ranks": job.n_ranks,
        "block_bytes": job.block_bytes,
        "entries": [encode_entry(item, blocks) for item, blocks in zip(items, crcs, strict=True)],
    }
    text = json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()
    if len(text) > MAX_BYTES:
        raise StateError(
            f"the list of {len(items)} tensors would have {len(text)} bytes, more than readers take: save fewer or "
            "larger tensors, or from more ranks"
        )
    own = crc(text)
    return text[: _CRC_AT.start] + b"%08x" % own + text[_CRC_AT.stop :], own


def decode(text: bytes, record: FileRecord, manifest: Manifest, crc: Crc) -> list[StoredEntry]:
    """Return the entries that a sidecar lists; their offsets count within each entry, from 0.

    Raises
    ------
    CorruptError
        If the text is damaged, belongs to another save, or has impossible values; names every problem.
    """
    head = _HEAD.match(text)
    if head is None or crc(text[: _CRC_AT.start] + b"00000000" + text[_CRC_AT.stop :]) != int(head[1], 16):
        raise CorruptError(f"{record.path} is damaged; use an older step")
    if int(head[1], 16) != record.header_crc:
        raise CorruptError(f"{record.path}: not the file that the manifest names (stale or swapped); use an older step")
    document = _parse(text, record.path)
    named = _PATH.fullmatch(record.path)
    rank = int(named[1]) if named else -1
    problems: list[Problem] = []
    if document.get("save_id") != manifest.save_id:
        problems.append(Problem("save_id", f"{document.get('save_id')!r} is not that of the manifest"))
    if document.get("rank") != rank or not 0 <= rank < manifest.n_ranks:
        problems.append(Problem("rank", f"{document.get('rank')!r} is not the rank whose file this is"))
    entries = document.get("entries")
    if not isinstance(entries, list):
        problems.append(Problem("entries", "must be a list"))
    else:
        for number, entry in enumerate(entries):
            message = entry_problem(entry) or _crcs_problem(entry, manifest)
            if message:
                problems.append(Problem(f"entries[{number}]", message))
    if problems:
        raise CorruptError(f"{record.path}: {list_problems(problems)}; use an older step")
    return [StoredEntry(decode_item(entry), rank, record.path, 0, decode_crcs(entry)) for entry in document["entries"]]


def _parse(text: bytes, where: str) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CorruptError(f"{where} cannot be read ({error}); use an older step") from None
    return document if isinstance(document, dict) else {}


def _crcs_problem(entry: Mapping[str, Any], manifest: Manifest) -> str | None:
    n_blocks = block_count(decode_item(entry).nbytes, manifest.block_bytes)
    return None if len(entry["crc32c"]) == 8 * n_blocks else "has the wrong number of checksums"
