"""Several arrays and one JSON value as one line of bytes: what each rank has for itself, of any size at every save.

The bytes are those of a safetensors file, so that ``safetensors.numpy.load`` opens them; the JSON value
is in its metadata, under ``json``.  Arrays of dtypes that safetensors does not know are stored as bytes, with their
dtypes in its metadata, under ``dtypes``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from hpcckpt.core.dtypes import dtype_token, numpy_dtype
from hpcckpt.core.tensors import SAFETENSORS_CODES, TensorSpec
from hpcckpt.errors import CorruptError
from hpcckpt.format.manifest import decode_objects, encode_objects
from hpcckpt.state.tree import (
    Array,
    DynamicPart,
    Finish,
    ObjectLeaf,
    StateTree,
    TensorLeaf,
    as_bytes,
    leaf_name,
    plain,
    state_dict_leaves,
)

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


def pack_state_dict(held: Any) -> Array:
    """Return what a ``state_dict()`` returned as bytes: containers, keys and numbers of any kind. Pure.

    Raises
    ------
    StateError
        Naming every value that cannot be saved.
    """
    tree = _state_dict_tree(held, lambda _: None)
    tensors = {name: leaf.read() for name, leaf in tree.tensors.items()}
    return pack(tensors, {name: leaf.read() for name, leaf in tree.objects.items()})


def unpack_state_dict(packed: Array, held: Any, load: Callable[[dict[Any, Any]], Any]) -> None:
    """Pass what `pack_state_dict` was given to ``load_state_dict``. Independent.

    Parameters
    ----------
    packed : numpy.ndarray
        The bytes.
    held : mapping
        What ``state_dict()`` returns now; arrays in it are filled, so it must not be the object's own.
    load : callable
        Given the state: the object's ``load_state_dict``.
    """
    arrays, values = unpack(packed)
    if not arrays and not values:
        load({})
        return
    specs = {name: TensorSpec(name, dtype_token(array.dtype), array.shape) for name, array in arrays.items()}
    tree = _state_dict_tree(held, load).resolved(specs, values)
    for name, leaf in tree.tensors.items():
        leaf.assign(arrays[name])
    for name in values.keys() & tree.objects.keys():
        tree.objects[name].assign(values[name])
    for finish in tree.finishes:
        if isinstance(finish, Finish):
            finish.run()


def _state_dict_tree(held: Any, load: Callable[[dict[Any, Any]], Any]) -> StateTree:
    leaves, finishes = dict[str, TensorLeaf | ObjectLeaf](), list[Finish | DynamicPart]()
    for leaf in state_dict_leaves(held, "", load, is_free=True):
        if isinstance(leaf, TensorLeaf | ObjectLeaf):
            leaves[leaf_name(leaf)] = leaf
        else:
            finishes.append(leaf)
    return StateTree({}, {}, tuple(finishes)).with_leaves(leaves)


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
