"""Contents of a ``.safetensors`` file, mapped into memory rather than read. The header is untrusted input."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hpcckpt.core.dtypes import numpy_dtype
from hpcckpt.core.results import Progress
from hpcckpt.core.tensors import MAX_DIMS, itemsize
from hpcckpt.errors import ConfigError, CorruptError, ForeignFormatError, Problem, list_problems
from hpcckpt.format.note import decode
from hpcckpt.restoring.reader import Array
from hpcckpt.tools.convert.contents import Contents, with_note
from hpcckpt.tools.convert.write_safetensors import CODES, MAX_HEADER_BYTES, NOTE_KEY

_TOKENS = {code: token for token, code in CODES.items()}
_PART_KEY = "hpcckpt"


def read_safetensors(path: Path, progress: Progress | None = None) -> Contents:
    """Return the arrays of a file; they lie in the file until they are read. Independent.

    Raises
    ------
    ForeignFormatError
        If it is a part of a checkpoint of hpcckpt, or has dtypes that are not known.
    CorruptError
        If the header is not valid, or the file shorter than it says; names every problem.
    ConfigError
        If NumPy has no arrays of such a shape on this machine.
    """
    tensors, metadata = map_safetensors(path)
    if progress:
        progress(sum(array.nbytes for array in tensors.values()))
    note = metadata.get(NOTE_KEY)
    return with_note(Contents(tensors), decode(note) if isinstance(note, str) else None)


def map_safetensors(path: Path) -> tuple[dict[str, Array], dict[str, Any]]:
    """Return the arrays of a file, read-only and mapped, in the order of its header, and its metadata. Independent.

    Raises
    ------
    ForeignFormatError, CorruptError, ConfigError
        As `read_safetensors`.
    """
    header, start = _header(path)
    metadata = header.pop("__metadata__", {})
    metadata = metadata if isinstance(metadata, dict) else {}
    if _PART_KEY in metadata:
        raise ForeignFormatError(f"{path} is a part of a checkpoint of hpcckpt: give the directory of the step")
    nbytes = path.stat().st_size - start
    problems = [problem for name, entry in header.items() for problem in _problems(name, entry, nbytes)]
    if problems or (problems := list(_overlaps(header))):
        raise CorruptError(f"{path} is damaged: {list_problems(problems, 5)}")
    unknown = [f"{name} ({entry['dtype']})" for name, entry in header.items() if entry["dtype"] not in _TOKENS]
    if unknown:
        raise ForeignFormatError(f"{path} has dtypes that are not known here: {', '.join(unknown[:5])}")
    mapped: Array = np.memmap(path, np.uint8, "r", start, (nbytes,)) if nbytes else np.empty(0, np.uint8)
    return {name: _array(mapped, entry, f"{path}: {name}") for name, entry in header.items()}, metadata


def _header(path: Path) -> tuple[dict[str, Any], int]:
    size = path.stat().st_size
    with path.open("rb") as file:
        word = file.read(8)
        length = struct.unpack("<Q", word)[0] if len(word) == 8 else 0
        if not 2 <= length <= min(MAX_HEADER_BYTES, size - 8):
            raise CorruptError(f"{path} is damaged: it has no header of safetensors, or is cut short")
        try:
            header = json.loads(file.read(length))
        except (ValueError, RecursionError) as error:
            raise CorruptError(f"{path} is damaged: its header is not JSON: {error}") from error
    if not isinstance(header, dict):
        raise CorruptError(f"{path} is damaged: its header is no JSON object")
    return header, 8 + length


def _problems(name: str, entry: Any, nbytes: int) -> Iterator[Problem]:
    """Yield what is wrong with an entry; one that passes lies in the file and has as many bytes as its shape says."""
    if not isinstance(entry, dict) or not isinstance(entry.get("dtype"), str):
        yield Problem(repr(name), "has no dtype")
        return
    shape, offsets = _counts(entry.get("shape"), MAX_DIMS), _counts(entry.get("data_offsets"), 2)
    if shape is None or offsets is None or len(offsets) != 2:
        yield Problem(repr(name), "has no shape, or no place in the file")
        return
    token = _TOKENS.get(entry["dtype"])
    if not offsets[0] <= offsets[1] <= nbytes:
        yield Problem(repr(name), "lies beyond the end of the file")
    elif token is not None and math.prod(shape) * itemsize(token) != offsets[1] - offsets[0]:
        yield Problem(repr(name), "has another number of bytes than its shape says")


def _overlaps(header: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield entries that share bytes with another one: the format has none, and a small file would be a large one."""
    end = 0
    for name, entry in sorted(header.items(), key=lambda item: tuple(item[1]["data_offsets"])):
        if entry["data_offsets"][0] < end:
            yield Problem(repr(name), "lies over another tensor")
        end = max(end, entry["data_offsets"][1])


def _counts(value: Any, limit: int) -> list[int] | None:
    is_list = isinstance(value, list) and len(value) <= limit
    is_sound = is_list and all(isinstance(n, int) and not isinstance(n, bool) and 0 <= n < 1 << 62 for n in value)
    return value if is_sound else None


def _array(mapped: Array, entry: Mapping[str, Any], where: str) -> Array:
    dtype = numpy_dtype(_TOKENS[entry["dtype"]])
    begin, end = entry["data_offsets"]
    part = mapped[begin:end]
    found: Array = part.view(dtype) if begin % dtype.itemsize == 0 else part.copy().view(dtype)
    try:
        return found.reshape(entry["shape"])
    except ValueError as error:  # NumPy 1 has at most 32 axes
        raise ConfigError(f"{where}: NumPy on this machine has no arrays of this shape: {error}") from None
