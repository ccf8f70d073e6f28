"""JSON, NumPy scalars and arrays of a checkpoint that the state has no place for yet.

Names do not tell a key with a "/" from a dict within a dict, nor a list from a dict, so only a value by itself and the
items of a flat dict are taken.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, MutableMapping
from typing import Any

import numpy as np

from hpcckpt.core.dtypes import numpy_dtype
from hpcckpt.core.plan import Declaration
from hpcckpt.core.tensors import Extent, TensorSpec
from hpcckpt.state.leaves import Array, DynamicPart, ObjectLeaf, Resolved, TensorLeaf, put


def filled_when_empty(name: str, container: MutableMapping[Any, Any]) -> DynamicPart:
    """Return what puts all that a checkpoint has below a name into an empty dict, if it is a flat dict."""

    def resolve(specs: Mapping[str, TensorSpec], objects: Mapping[str, Any]) -> Resolved:
        if name in objects or name in specs:
            return Resolved()
        leaves = value_leaves(name, specs, objects, container, takes_arrays=True)
        return Resolved(leaves, [name]) if leaves else Resolved()

    return DynamicPart(resolve, name)


def value_leaves(
    name: str,
    specs: Mapping[str, TensorSpec],
    objects: Mapping[str, Any],
    found: MutableMapping[Any, Any],
    *,
    takes_arrays: bool = False,
) -> list[TensorLeaf | ObjectLeaf] | None:
    """Return leaves that put what a checkpoint has below a name into `found`, by key; what it is itself under "". Pure.

    Returns ``None`` if there is more than JSON and scalars: values of each rank, containers in containers, and arrays
    unless it takes these too.
    """
    below = f"{name}/"
    keys = {each: each[len(below) :] for each in (*specs, *objects) if each == name or each.startswith(below)}
    tensors = [specs[each] for each in keys if each in specs]
    if any((spec.shape and not takes_arrays) or spec.kind != "replicated" for spec in tensors):
        return None
    if any("/" in key or key.startswith(".") for key in keys.values()):
        return None
    return [
        ObjectLeaf(each, None, found, key) if each in objects else _leaf(specs[each], found, key)
        for each, key in keys.items()
    ]


def _leaf(spec: TensorSpec, found: MutableMapping[Any, Any], key: str) -> TensorLeaf:
    assign = functools.partial(_put_copy, found, key)
    declaration = Declaration(spec, Extent.whole(spec.shape))
    return TensorLeaf(declaration, lambda: np.empty(spec.shape, numpy_dtype(spec.dtype)), assign)


def _put_copy(found: MutableMapping[Any, Any], key: str, new: Array) -> None:
    put(found, key, new.copy() if new.shape else new[()])
