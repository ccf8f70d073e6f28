"""JSON and NumPy scalars of a checkpoint that the state has no place for yet: made from what the checkpoint has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

import numpy as np

from hpcckpt.core.dtypes import numpy_dtype
from hpcckpt.core.plan import Declaration
from hpcckpt.core.tensors import Extent, TensorSpec
from hpcckpt.state.leaves import Array, DynamicPart, Finish, ObjectLeaf, Resolved, TensorLeaf


class _Scalar(np.ndarray[Any, Any]):
    """A scalar that was a tensor in the checkpoint: the items of a list are, those of a dict may be JSON."""


def filled_when_empty(name: str, container: MutableMapping[Any, Any]) -> DynamicPart:
    """Return what puts all that a checkpoint has below a name into an empty dict, if it is JSON and scalars."""
    found: dict[str, Any] = {}

    def resolve(specs: Mapping[str, TensorSpec], objects: Mapping[str, Any]) -> Resolved:
        leaves = value_leaves(name, specs, objects, found) if name not in objects and name not in specs else None
        return Resolved(leaves, [name], Finish(finish)) if leaves else Resolved()

    def finish() -> None:
        made = value_of(found) if found else {}
        if isinstance(made, Mapping):  # a list otherwise, which the dict cannot be
            container.update(made)

    return DynamicPart(resolve)


def value_leaves(
    name: str, specs: Mapping[str, TensorSpec], objects: Mapping[str, Any], found: dict[str, Any]
) -> list[TensorLeaf | ObjectLeaf] | None:
    """Return leaves that put what a checkpoint has under a name into `found`, by path; see `value_of`. Pure.

    Returns ``None`` if not all of it is JSON and scalars: arrays, values of each rank, objects with a ``state_dict``.
    """
    names = [each for each in (*specs, *objects) if each == name or each.startswith(f"{name}/")]
    tensors = [specs[each] for each in names if each in specs]
    if any(spec.shape or spec.kind != "replicated" for spec in tensors) or any("/.types" in each for each in names):
        return None
    return [
        ObjectLeaf(each, None, found, each[len(name) + 1 :]) if each in objects else _leaf(specs[each], name, found)
        for each in names
    ]


def _leaf(spec: TensorSpec, name: str, found: dict[str, Any]) -> TensorLeaf:
    path, room = spec.name[len(name) + 1 :], np.empty((), numpy_dtype(spec.dtype))

    def assign(new: Array) -> None:
        found[path] = new.copy().view(_Scalar)

    return TensorLeaf(Declaration(spec, Extent.whole(())), lambda: room, assign)


def value_of(found: Mapping[str, Any]) -> Any:
    """Return the value whose parts were found, by path: a list where scalars are numbered from 0, else a dict. Pure."""
    if "" in found:
        value = found[""]
        return value[()] if isinstance(value, _Scalar) else value
    keys = list(dict.fromkeys(path.partition("/")[0] for path in found))
    parts = {key: value_of(dict(_below(found, key))) for key in keys}
    is_list = {*keys} == {str(number) for number in range(len(keys))}
    if is_list and any(isinstance(value, _Scalar) for value in found.values()):
        return [parts[str(number)] for number in range(len(keys))]
    return parts


def _below(found: Mapping[str, Any], key: str) -> Iterator[tuple[str, Any]]:
    for path, value in found.items():
        first, _, rest = path.partition("/")
        if first == key:
            yield rest, value
