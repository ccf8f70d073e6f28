"""Several arrays and one JSON value as one line of bytes: what each rank has for itself, of any size at every save.

The bytes are those of a safetensors file, so that ``safetensors.numpy.load`` opens them; the JSON value
is in its metadata, under ``json``.  Arrays of dtypes that safetensors does not know are stored as bytes, with their
dtypes in its metadata, under ``dtypes``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from hpcckpt.core.dtypes import dtype_token, numpy_dtype
from hpcckpt.core.tensors import SAFETENSORS_CODES
from hpcckpt.errors import CorruptError
from hpcckpt.format.manifest import decode_objects, encode_objects
from hpcckpt.state.tree import Array, as_bytes, plain

_TOKENS = {code: token for token, code in SAFETENSORS_CODES.items()}
_HEAD = 8


def pack(arrays: Mapping[str, Array], value: Any = None) -> Array:
    """Return arrays and a JSON value as bytes. Pure.

    Raises
    ------
    StateError
        If an array has a dtype that cannot be saved.
    """
    parts = {name: plain(np.asarray(array)) for name, array in arrays.items()}
    tokens = {name: dtype_token(held.dtype) for name, held in parts.items()}
    others = {name: token for name, token in tokens.items() if token not in SAFETENSORS_CODES}
    metadata = {"json": json.dumps(encode_objects(value)), **({"dtypes": json.dumps(others)} if others else {})}
    header: dict[str, Any] = {"__metadata__": metadata}
    position = 0
    for name, held in parts.items():
        shape = [*held.shape, held.dtype.itemsize] if name in others else list(held.shape)
        offsets = [position, position + held.nbytes]
        header[name] = {"dtype": SAFETENSORS_CODES.get(tokens[name], "U8"), "shape": shape, "data_offsets": offsets}
        position += held.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % _HEAD)
    head = np.frombuffer(len(text).to_bytes(_HEAD, "little") + text, np.uint8)
    return np.concatenate([head, *map(as_bytes, parts.values())])


def unpack(packed: Array) -> tuple[dict[str, Array], Any]:
    """Return what `pack` was given. Pure.

    Raises
    ------
    CorruptError
        If the bytes are no such thing.
    """
    try:
        return _unpacked(packed)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptError(f"a packed entry cannot be read ({error}); use an older step") from error


def _unpacked(packed: Array) -> tuple[dict[str, Array], Any]:
    raw = as_bytes(packed)
    start = _HEAD + int.from_bytes(raw[:_HEAD].tobytes(), "little")
    header = json.loads(raw[_HEAD:start].tobytes())
    metadata = header.pop("__metadata__")
    value = decode_objects(json.loads(metadata["json"]))
    others = json.loads(metadata.get("dtypes", "{}"))
    arrays = {}
    for name, entry in header.items():
        first, last = entry["data_offsets"]
        data = raw[start + first : start + last]
        shape, dtype = tuple(entry["shape"]), numpy_dtype(others.get(name) or _TOKENS[entry["dtype"]])
        shape = shape[:-1] if name in others else shape
        if len(data) != math.prod(shape) * dtype.itemsize:
            raise ValueError(f"{name} is cut short")
        arrays[name] = np.frombuffer(data.tobytes(), dtype).reshape(shape)
    return arrays, value
