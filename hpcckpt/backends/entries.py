"""Entries as JSON in the data files of the built-in backends: what they are, never where. Pure.

Those of an untrusted file are checked all at once, column by column (`decode_columns`); only where that finds anything
unusual, one by one, for what is wrong with each (`entry_problem`).
"""

from __future__ import annotations

import itertools
import math
import operator
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hpcckpt.core.plan import StoredEntry, WriteItem
from hpcckpt.core.tensors import KINDS, MAX_DIMS, MAX_NBYTES, Extent, TensorSpec, itemsize, name_problem
from hpcckpt.errors import Problem
from hpcckpt.format.manifest import shape_problem

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
    """Return the JSON record of an entry: the part of the tensor that it is, and the CRC32C of its blocks."""
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


class Columns(NamedTuple):
    """Entries that are good, as columns.

    Attributes
    ----------
    items : list of WriteItem
        What they are.
    nbytes : numpy.ndarray
        Bytes of each, int64.
    crcs : list of str
        The hexadecimal digits of the checksums of each.
    """

    items: list[WriteItem]
    nbytes: npt.NDArray[np.int64]
    crcs: Sequence[str]


_FIELDS = operator.itemgetter("tensor", "kind", "dtype", "global_shape", "offset", "shape", "span", "crc32c")


def decode_columns(entries: Sequence[Any]) -> Columns | None:
    """Return what entries of an untrusted file are, or None if `entry_problem` may have something to say of one."""
    try:
        return _decode_columns(entries)
    except (KeyError, OverflowError, TypeError, ValueError):
        return None


def _decode_columns(entries: Sequence[Any]) -> Columns | None:
    names, kinds, dtypes, wholes, offsets, shapes, spans, crcs = zip(*map(_FIELDS, entries), strict=True)
    texts = itertools.chain(names, kinds, dtypes, crcs)
    lists = itertools.chain(wholes, offsets, shapes, spans)
    if {*map(type, entries)} != {dict} or {*map(type, texts)} != {str} or {*map(type, lists)} != {list}:
        return None
    if any(map(name_problem, names)) or not {*kinds} <= {*KINDS} or not _are_crcs(crcs):
        return None
    n_dims = [*map(len, shapes)]
    if max(n_dims) > MAX_DIMS or [*map(len, offsets)] != n_dims or [*map(len, wholes)] != n_dims:
        return None
    by_dtype = {dtype: itemsize(dtype) for dtype in {*dtypes}}
    widths = [by_dtype[dtype] for dtype in dtypes]
    is_own = np.repeat(np.array([kind == "per-rank" for kind in kinds]), n_dims)
    if not _are_boxes(_flat(wholes), _flat(offsets), _flat(shapes), is_own):
        return None
    if max(map(_bytes_counted, shapes, widths)) > MAX_NBYTES or max(map(_bytes_counted, wholes, widths)) > MAX_NBYTES:
        return None
    starts, stops = _flat(spans).reshape(len(spans), 2).T
    n_elements = np.array([*map(math.prod, shapes)], np.int64)
    if not ((starts >= 0) & (starts <= stops) & (stops <= n_elements)).all():
        return None
    specs = map(TensorSpec, names, dtypes, map(tuple, wholes), kinds)
    extents = map(Extent, map(tuple, offsets), map(tuple, shapes))
    items = [WriteItem(spec, extent, *span) for spec, extent, span in zip(specs, extents, spans, strict=True)]
    return Columns(items, (stops - starts) * np.array(widths), crcs)


def _flat(lists: Sequence[list[int]]) -> npt.NDArray[np.int64]:
    """Return all numbers of lists of sizes, or raise ValueError if something else is among them."""
    numbers = [*itertools.chain.from_iterable(lists)]
    if not {*map(type, numbers)} <= {int}:
        raise ValueError("not all are integers")
    return np.array(numbers, np.int64)


def _are_boxes(
    wholes: npt.NDArray[np.int64],
    offsets: npt.NDArray[np.int64],
    shapes: npt.NDArray[np.int64],
    is_own: npt.NDArray[np.bool_],
) -> bool:
    """Return True if all boxes are inside their tensors, axis by axis; one that a rank has for itself is all of it."""
    for sizes in (wholes, offsets, shapes):
        if not ((sizes >= 0) & (sizes <= MAX_NBYTES)).all():
            return False
    return bool(np.where(is_own, offsets == 0, offsets + shapes <= wholes).all())


def _bytes_counted(shape: list[int], width: int) -> int:
    """Return the bytes of a tensor as NumPy counts them: an axis of length 0 does not count."""
    return math.prod(shape if 0 not in shape else [n or 1 for n in shape]) * max(width, 1)


def _are_crcs(texts: Sequence[str]) -> bool:
    return not any(len(text) % 8 for text in texts) and _CRCS.fullmatch("".join(texts)) is not None


def decode_item(entry: Mapping[str, Any]) -> WriteItem:
    """Return the item of an entry that was found valid."""
    spec = TensorSpec(entry["tensor"], entry["dtype"], tuple(entry["global_shape"]), entry["kind"])
    return WriteItem(spec, Extent(tuple(entry["offset"]), tuple(entry["shape"])), *entry["span"])


def decode_crcs(entry: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the checksums of the blocks of an entry found good."""
    return crcs_of(entry["crc32c"])


def crcs_of(digits: str) -> tuple[int, ...]:
    """Return the checksums that hexadecimal digits are."""
    crcs = bytes.fromhex(digits)
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
    if not isinstance(offset, list) or not all(isinstance(start, int) and start >= 0 for start in offset):
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


def overlap_problems(entries: Sequence[StoredEntry]) -> Iterator[Problem]:
    """Yield the entries of one file that share bytes: a small file could give tensors beyond any memory."""
    end = 0
    for entry in sorted(entries, key=lambda entry: (entry.offset, entry.nbytes)):
        if entry.nbytes and entry.offset < end:
            yield Problem(f"entry of {entry.item.spec.name!r}", f"shares bytes from {entry.offset} on with another one")
        end = max(end, entry.offset + entry.nbytes)
