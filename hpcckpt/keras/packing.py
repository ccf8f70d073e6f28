"""Several arrays and one JSON value as one line of bytes: what each rank has for itself, of any size at every save.

The bytes are those of a safetensors file, so that ``safetensors.numpy.load`` opens them; the JSON value
stands in its metadata, under ``json``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from hpcckpt.dtypes import dtype_token, numpy_dtype
from hpcckpt.errors import CorruptError, OptionError
from hpcckpt.manifest import decode_objects, encode_objects
from hpcckpt.snapshot import Array, as_bytes, plain

_CODES = {
    "bool": "BOOL", "int8": "I8", "int16": "I16", "int32": "I32", "int64": "I64",
    "uint8": "U8", "uint16": "U16", "uint32": "U32", "uint64": "U64",
    "float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64",
}  # fmt: skip
_TOKENS = {code: token for token, code in _CODES.items()}
_HEAD = 8


def pack(arrays: Mapping[str, Array], value: Any = None) -> Array:
    """Return arrays and a JSON value as bytes. Pure.

    Raises
    ------
    OptionError
        If an array has a dtype that safetensors does not know.
    """
    header: dict[str, Any] = {"__metadata__": {"json": json.dumps(encode_objects(value))}}
    parts, position = [], 0
    for name, array in arrays.items():
        held = plain(np.asarray(array))
        token = dtype_token(held.dtype)
        if token not in _CODES:
            raise OptionError(f"{name}: arrays of dtype {token} cannot be saved here")
        offsets = [position, position + held.nbytes]
        header[name] = {"dtype": _CODES[token], "shape": list(held.shape), "data_offsets": offsets}
        parts.append(as_bytes(held))
        position += held.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % _HEAD)
    return np.concatenate([np.frombuffer(len(text).to_bytes(_HEAD, "little") + text, np.uint8), *parts])


def unpack(packed: Array) -> tuple[dict[str, Array], Any]:
    """Return what `pack` was given. Pure.

    Raises
    ------
    CorruptError
        If the bytes are no such thing.
    """
    try:
        return _unpacked(packed)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptError(f"a packed entry cannot be read ({error}); use an older step") from error


def _unpacked(packed: Array) -> tuple[dict[str, Array], Any]:
    raw = as_bytes(packed)
    start = _HEAD + int.from_bytes(raw[:_HEAD].tobytes(), "little")
    header = json.loads(raw[_HEAD:start].tobytes())
    value = decode_objects(json.loads(header.pop("__metadata__")["json"]))
    arrays = {}
    for name, entry in header.items():
        first, last = entry["data_offsets"]
        data = raw[start + first : start + last]
        shape, dtype = tuple(entry["shape"]), numpy_dtype(_TOKENS[entry["dtype"]])
        if len(data) != math.prod(shape) * dtype.itemsize:
            raise ValueError(f"{name} is cut short")
        arrays[name] = np.frombuffer(data.tobytes(), dtype).reshape(shape)
    return arrays, value
