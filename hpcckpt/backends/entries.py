"""Entries as JSON, as they stand in the data files of the built-in backends: what they are, never where. Pure."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hpcckpt.errors import Problem
from hpcckpt.manifest import shape_problem
from hpcckpt.plan import StoredEntry, WriteItem
from hpcckpt.tensors import KINDS, Extent, TensorSpec, name_problem

_CRCS = re.compile("(?:[0-9a-f]{8})*")


def entry_name(item: WriteItem) -> str:
    """Return the name of an entry in its file: the tensor's own if the entry is the whole tensor."""
    extent, spec = item.extent, item.spec
    is_whole_box = (item.start, item.stop) == (0, extent.n_elements)
    name = spec.name
    if spec.kind != "per-rank" and (any(extent.offset) or extent.shape != spec.shape):
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


def encode_entry(item: WriteItem, crcs: Sequence[int]) -> dict[str, Any]:
    """Return what stands for an entry: the part of the tensor that it is, and the CRC32C of its blocks."""
    return {
        "tensor": item.spec.name,
        "kind": item.spec.kind,
        "dtype": item.spec.dtype,
        "global_shape": list(item.spec.shape),
        "offset": list(item.extent.offset),
        "shape": list(item.extent.shape),
        "span": [item.start, item.stop],
        "crc32c": struct.pack(f">{len(crcs)}I", *crcs).hex(),
    }


def decode_item(entry: Mapping[str, Any]) -> WriteItem:
    """Return the item that an entry found good stands for."""
    spec = TensorSpec(entry["tensor"], entry["dtype"], tuple(entry["global_shape"]), entry["kind"])
    return WriteItem(spec, Extent(tuple(entry["offset"]), tuple(entry["shape"])), *entry["span"])


def decode_crcs(entry: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the checksums of the blocks of an entry found good."""
    crcs = bytes.fromhex(entry["crc32c"])
    return struct.unpack(f">{len(crcs) // 4}I", crcs)


def entry_problem(entry: Any) -> str | None:
    """Say what is wrong with an entry of an untrusted file by itself, or ``None``."""
    if not isinstance(entry, dict):
        return "must be an object"
    tensor, span, crcs = entry.get("tensor"), entry.get("span"), entry.get("crc32c")
    if not isinstance(tensor, str) or name_problem(tensor):
        return f"tensor name {tensor!r} is not allowed"
    if entry.get("kind") not in KINDS:
        return f"kind {entry.get('kind')!r} is not known"
    dtype: Any = entry.get("dtype")
    global_shape: Any = entry.get("global_shape")
    shape: Any = entry.get("shape")
    problem = shape_problem(dtype, global_shape) or shape_problem(dtype, shape)
    if problem:
        return problem
    offset = entry.get("offset")
    if not isinstance(offset, list) or not all(map(_is_size, offset)):
        return "offset must be a list of sizes"
    extent = Extent(tuple(offset), tuple(shape or ()))
    is_whole = extent.offset == (0,) * len(extent.shape)
    if not (is_whole if entry["kind"] == "per-rank" else extent.fits(tuple(global_shape or ()))):
        return "the extent leaves the tensor"
    if not (isinstance(span, list) and len(span) == 2 and isinstance(span[0], int) and isinstance(span[1], int)):
        return "span must be two numbers"
    if not 0 <= span[0] <= span[1] <= extent.n_elements:
        return f"span {span} leaves the extent"
    is_hex = isinstance(crcs, str) and _CRCS.fullmatch(crcs) is not None
    return None if is_hex else "crc32c must be hexadecimal digits"


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and value >= 0


def overlap_problems(entries: Sequence[StoredEntry]) -> Iterator[Problem]:
    """Yield the entries of one file that share bytes: a small file could give tensors beyond any memory."""
    end = 0
    for entry in sorted(entries, key=lambda entry: (entry.offset, entry.nbytes)):
        if entry.nbytes and entry.offset < end:
            yield Problem(f"entry of {entry.item.spec.name!r}", f"shares bytes from {entry.offset} on with another one")
        end = max(end, entry.offset + entry.nbytes)
