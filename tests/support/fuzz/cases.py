"""Checkpoints that somebody made up: a JSON description, mutated as a tree, and sealed so that every checksum fits.

A description is ``{"manifest": …, "files": [{"path", "table", "document", "data"}, …], "edits": […]}``: the manifest
without its checksum; of each data file the safetensors table, our document, and the number of data bytes; and changes
of the texts that are made just before they are sealed.  ``"auto"`` represents a value that :func:`build` finds: sizes
and checksums.  Whatever is not ``"auto"`` is taken unchanged, so that a description can lie anywhere.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import json
import random
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hpcckpt import native
from hpcckpt.format import layout
from tests.support.paths import TESTS

GOLDEN = TESTS / "format" / "golden-1" / "step-0000000042"
AUTO = "auto"
PAGE = 4096
MAX_CASE_BYTES = 1 << 18
_PLAIN_PATH = re.compile(r"data/[A-Za-z0-9_.-]{1,80}")
_MAX_DATA = 1 << 18
_MAX_BLOCKS = 1 << 14


# -- from a description to a directory -----------------------------------------------------------


def seal_manifest(text: bytes) -> bytes:
    """Give a manifest's text the checksum that fits, if it begins as one does."""
    if not text.startswith(b'{\n "crc32c": "'):
        return text
    zeroed = text[:14] + b"00000000" + text[22:]
    return zeroed[:14] + b"%08x" % native.crc32c(zeroed) + zeroed[22:]


def _seal_header(header: bytes) -> tuple[bytes, int]:
    """Pad a header, and give it the checksum that fits."""
    header += b" " * (-(len(header) + 8) % PAGE)
    zeroed = header[:42] + b"00000000" + header[50:]
    crc = native.crc32c(zeroed)
    return zeroed[:42] + b"%08x" % crc + zeroed[50:], crc


def build(case: dict[str, Any], step: Path) -> int:
    """Write the step that a description describes into an empty directory; return its bytes."""
    (step / layout.DATA).mkdir(parents=True)
    manifest = copy.deepcopy(case.get("manifest"))
    edits = _edits_of(case)
    files = case.get("files")
    built: dict[Any, tuple[int, int]] = {}
    total = 0
    for number, file in enumerate(files if isinstance(files, list) else []):
        if isinstance(file, dict) and isinstance(file.get("path"), str) and _PLAIN_PATH.fullmatch(file["path"]):
            content, crc = _content(file, manifest, edits.get(number, []))
            (step / file["path"]).write_bytes(content)
            built[file["path"]] = len(content), crc
            total += len(content)
    text = _manifest_text(manifest, built, edits.get(-1, []))
    (step / layout.MANIFEST).write_bytes(text)
    return total + len(text)


def _edits_of(case: dict[str, Any]) -> dict[int, list[tuple[int, int, bytes]]]:
    """Return the changes of texts by file; -1 is the manifest."""
    found: dict[int, list[tuple[int, int, bytes]]] = {}
    edits = case.get("edits")
    for edit in edits if isinstance(edits, list) else []:
        if isinstance(edit, list) and len(edit) == 4 and [type(part) for part in edit] == [int, int, int, str]:
            where, at, length, text = edit
            found.setdefault(where, []).append((at, length, text.encode("utf-8", "surrogatepass")))
    return found


def _edited(text: bytes, edits: list[tuple[int, int, bytes]]) -> bytes:
    for at, length, new in edits:
        start = at % (len(text) + 1)
        text = text[:start] + new + text[start + max(0, length) % 64 :]
    return text


def _compact(document: Any) -> str:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False)


def _content(file: dict[str, Any], manifest: Any, edits: list[tuple[int, int, bytes]]) -> tuple[bytes, int]:
    """Return the bytes of a data file, and the checksum of its header."""
    nbytes = file.get("data")
    data = _values(nbytes if isinstance(nbytes, int) and 0 <= nbytes <= _MAX_DATA else 0)
    document = copy.deepcopy(file.get("document"))
    table = file.get("table") if isinstance(file.get("table"), dict) else {}
    block_bytes = manifest.get("block_bytes") if isinstance(manifest, dict) else None
    _fill_checksums(document, table, data, block_bytes)
    metadata = {"hpcckpt.header_crc32c": "00000000", "hpcckpt": _compact(document)}
    text = _compact({"__metadata__": metadata, **table}).encode("utf-8", "surrogatepass")
    header, crc = _seal_header(_edited(text, edits))
    return struct.pack("<Q", len(header)) + header + data, crc


def _values(nbytes: int) -> bytes:
    """Return data; any bytes do, for their checksums are made to fit."""
    return bytes(range(1, 252)) * (nbytes // 251) + bytes(range(nbytes % 251))


def _fill_checksums(document: Any, table: Any, data: bytes, block_bytes: Any) -> None:
    entries = document.get("entries") if isinstance(document, dict) else None
    for name, entry in entries.items() if isinstance(entries, dict) else ():
        if isinstance(entry, dict) and entry.get("crc32c") == AUTO:
            place = table.get(name)
            offsets = place.get("data_offsets") if isinstance(place, dict) else None
            entry["crc32c"] = _checksums(data, offsets, block_bytes)


def _checksums(data: bytes, offsets: Any, block_bytes: Any) -> str:
    is_range = isinstance(offsets, list) and len(offsets) == 2 and all(isinstance(n, int) for n in offsets)
    if not is_range or not 0 <= offsets[0] <= offsets[1] <= len(data):
        return ""
    if not isinstance(block_bytes, int) or block_bytes < 1 or len(data) // block_bytes > _MAX_BLOCKS:
        return ""
    crcs = native.crc32c_blocks(data[offsets[0] : offsets[1]], min(block_bytes, 1 << 30))
    return "".join(f"{crc:08x}" for crc in crcs)


def _manifest_text(manifest: Any, built: dict[Any, tuple[int, int]], edits: list[tuple[int, int, bytes]]) -> bytes:
    document = manifest if isinstance(manifest, dict) else {"x": manifest}
    records = document.get("files")
    for record in records if isinstance(records, list) else []:
        path = record.get("path") if isinstance(record, dict) else None
        nbytes, crc = built.get(path, (0, 0)) if isinstance(path, str) else (0, 0)
        if isinstance(record, dict):
            record["bytes"] = nbytes if record.get("bytes") == AUTO else record.get("bytes")
            record["header_crc32c"] = (
                f"{crc:08x}" if record.get("header_crc32c") == AUTO else record.get("header_crc32c")
            )
    return seal_manifest(_edited(manifest_text(document), edits))


def manifest_text(document: Any) -> bytes:
    """Return the text of a manifest, not yet sealed."""
    document = document if isinstance(document, dict) else {"x": document}
    plain = {name: value for name, value in document.items() if name != "crc32c"}
    text = json.dumps({"crc32c": "00000000", **plain}, indent=1, ensure_ascii=False)
    return text.encode("utf-8", "surrogatepass")


# -- from a directory to a description -----------------------------------------------------------


def describe(step: Path) -> dict[str, Any]:
    """Return the description of a real step."""
    manifest = json.loads((step / layout.MANIFEST).read_bytes())
    del manifest["crc32c"]
    files = []
    for record in manifest["files"]:
        record["bytes"] = record["header_crc32c"] = AUTO
        files.append({"path": record["path"], **_describe_file(step / record["path"])})
    return {"manifest": manifest, "files": files, "edits": []}


def _describe_file(path: Path) -> dict[str, Any]:
    content = path.read_bytes()
    length = struct.unpack("<Q", content[:8])[0]
    table = json.loads(content[8 : 8 + length])
    document = json.loads(table.pop("__metadata__")["hpcckpt"])
    for entry in document["entries"].values():
        entry["crc32c"] = AUTO
    return {"table": table, "document": document, "data": len(content) - 8 - length}


@functools.cache
def seeds() -> tuple[dict[str, Any], ...]:
    """Return descriptions of steps that are as they should be; not to be changed."""
    golden = describe(GOLDEN)
    older = copy.deepcopy(golden)  # one file is of an older save: an unchanged part that was linked
    older["manifest"]["files"][0]["save_id"] = older["files"][0]["document"]["save_id"] = "0123456789abcdef" * 2
    return golden, older, small(), small(), small()


def small() -> dict[str, Any]:
    """Return a step of one tensor in four blocks, written by two ranks: cheap to read, and quick to become wrong."""
    save_id = "0123456789abcdef" * 2
    spec = {"tensor": "w", "kind": "sharded", "dtype": "float32", "global_shape": [6, 4]}
    files = []
    for rank in range(2):
        entry = {**spec, "offset": [3 * rank, 0], "shape": [3, 4], "span": [0, 12], "crc32c": AUTO}
        document = {"format": 1, "save_id": save_id, "step": 1, "rank": rank, "ranks": 2, "block_bytes": 16}
        name = f"w[{3 * rank}:{3 * rank + 3},0:4]"
        table = {name: {"dtype": "F32", "shape": [3, 4], "data_offsets": [0, 48]}}
        document["entries"] = {name: entry}
        files.append({"path": f"data/rank-{rank:05d}.safetensors", "table": table, "document": document, "data": 48})
    manifest = {
        "format": 1, "save_id": save_id, "run_id": save_id, "parent": None, "step": 1, "ranks": 2,
        "created": "2026-01-01T00:00:00+00:00", "backend": "rankfile", "block_bytes": 16, "level": "state",
        "metrics": {"loss": 0.5}, "environment": {"numpy": "1"}, "objects": {"state": {"epoch": 1}, "user": {}},
        "files": [{"path": file["path"], "bytes": AUTO, "header_crc32c": AUTO} for file in files],
        "tensors": [{"name": "w", "dtype": "float32", "shape": [6, 4], "kind": "sharded"}],
    }  # fmt: skip
    return {"manifest": manifest, "files": files, "edits": []}


# -- mutation ------------------------------------------------------------------------------------

_NUMBERS = [
    -1, 0, 1, 2, 3, 7, 8, 16, 31, 32, 33, 64, 65, 255, 4095, 4096, 65536, 2**20, 2**30, 2**31 - 1, 2**31, 2**32, 2**53,
    2**60 - 1, 2**60, 2**60 + 1, 2**63 - 1, 2**63, 2**64, 10**18, 10**19, 10**400, -(2**63), 0.5, -0.0, 1e308,
]  # fmt: skip
_WORDS = [
    "", AUTO, "w", "float32", "float64", "int8", "uint8", "bool", "bfloat16", "float8_e3m4", "float8_e8m0fnu",
    "complex64", "<f16", "<c32", "|S0", "|S1", "|S3", "<U0", "<U5", "|V0", "|V16", "|S99999999", "<U99999999",
    "<M8[ns]", "<m8[100000as]", "<M8", "|U1", "<S2", "|S00000001", "O", "object", "replicated", "root", "sharded",
    "per-rank", "rankfile", "hdf5", "exact", "nan", "inf", "$float", "$$float", "__metadata__", "..", "a/b",
    "data/rank-00000.safetensors", "data/rank-00001.safetensors", "\x00", "\x1b[2J", "\ud800", "ü", "x" * 5000,
    "0" * 8, "f" * 32, "2026-01-01T00:00:00+00:00", "999999999-99-99",
]  # fmt: skip

Place = tuple[Any, Any]
"""A container and the key or index of something in it."""


def _places(value: Any) -> Iterator[Place]:
    stack = [value]
    while stack:
        container = stack.pop()
        inner = container.items() if isinstance(container, dict) else enumerate(container)
        for key, item in list(inner):
            yield container, key
            if isinstance(item, dict | list):
                stack.append(item)


def _new_value(rng: random.Random, old: Any, places: list[Place]) -> Any:
    """Return something to put where `old` was: near to it, of its type, from elsewhere, or anything."""
    choice = rng.randrange(6)
    if choice == 0 and isinstance(old, int):
        return rng.choice([old + 1, old - 1, old * 2, old // 2, -old, old + rng.randint(-64, 64)])
    if choice == 1:
        container, key = rng.choice(places)
        return copy.deepcopy(container[key])
    if choice == 2 and isinstance(old, list):
        return [*old, *copy.deepcopy(old)] if rng.random() < 0.5 else old[: rng.randint(0, len(old))]
    if choice == 3 or isinstance(old, int):
        return rng.choice(_NUMBERS)
    if choice == 4 or isinstance(old, str):
        return rng.choice(_WORDS)
    return rng.choice([None, True, False, [], {}, float("nan"), [0], [0, 0], [1] * 33, [1] * 64, {"a": 1}])


def _replace(rng: random.Random, case: dict[str, Any], places: list[Place]) -> None:
    container, key = rng.choice(places)
    container[key] = _new_value(rng, container[key], places)


def _replace_everywhere(rng: random.Random, case: dict[str, Any], places: list[Place]) -> None:
    """Tell one lie consistently: what was equal stays equal, so that it passes for true in more places."""
    container, key = rng.choice(places)
    old = container[key]
    new = _new_value(rng, old, places)
    for other, where in places:
        if type(other[where]) is type(old) and other[where] == old:
            other[where] = copy.deepcopy(new)


def _delete(rng: random.Random, case: dict[str, Any], places: list[Place]) -> None:
    container, key = rng.choice(places)
    del container[key]


def _repeat(rng: random.Random, case: dict[str, Any], places: list[Place]) -> None:
    """Put something once more beside itself."""
    container, key = rng.choice(places)
    if isinstance(container, list):
        container.insert(key, copy.deepcopy(container[key]))
    else:
        container[f"{key}{rng.choice(['', '~', '2'])}"] = copy.deepcopy(container[key])


def _rename(rng: random.Random, case: dict[str, Any], places: list[Place]) -> None:
    container, key = rng.choice(places)
    if isinstance(container, dict):
        container[rng.choice(_WORDS)] = container.pop(key)


def _nest(rng: random.Random, case: dict[str, Any], places: list[Place]) -> None:
    container, key = rng.choice(places)
    for _ in range(rng.choice([1, 2, 50, 150, 250])):
        container[key] = [container[key]] if rng.random() < 0.5 else {"a": container[key]}


def _edit(rng: random.Random, case: dict[str, Any], places: list[Place]) -> None:
    """Change a text just before it is sealed."""
    edits = case.setdefault("edits", [])
    if isinstance(edits, list):
        text = rng.choice(
            ["", " ", "\n", '"', "{", "}", "[" * 2000, "0", "\\", "\x00", "1e999", "NaN", "\\ud800", "9" * 5000]
        )
        edits.append([rng.randint(-1, 2), rng.randrange(1 << 14), rng.randint(0, 9), text])


_MUTATIONS = [_replace] * 5 + [_replace_everywhere] * 4 + [_delete, _repeat, _rename, _nest, _edit]


def mutated(rng: random.Random, case: dict[str, Any]) -> dict[str, Any]:
    """Return a description with a few changes, or the same one if it became too deep to be handled here."""
    fresh = copy.deepcopy(case)
    for _ in range(rng.choice([1, 1, 1, 2, 2, 3, 5])):
        places = list(_places(fresh))
        if places:
            with contextlib.suppress(RecursionError):
                rng.choice(_MUTATIONS)(rng, fresh, places)
    return fresh if decode(encode(fresh)) is not None else case


def encode(case: dict[str, Any]) -> bytes:
    """Return a description as bytes, for a fuzzer's corpus; none if it is too deep or too large to be handled here."""
    try:
        data = json.dumps(copy.deepcopy(case), separators=(",", ":")).encode()
    except (RecursionError, ValueError):
        return b""
    return data if len(data) <= MAX_CASE_BYTES else b""


def decode(data: bytes) -> dict[str, Any] | None:
    """Return the description that bytes hold, or ``None``."""
    try:
        case = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return case if isinstance(case, dict) else None
