"""Restored values that are kept until an epoch has begun, because callbacks change them in ``on_epoch_begin``.

A run that resumes within an epoch begins that epoch again.  The callbacks had changed the values before the save (an
annealed weight, a reset kernel, a learning rate), so they must not change them twice.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

import numpy as np

from hpcckpt.state.tf_hold import is_same_memory, tensors
from hpcckpt.state.tf_variables import is_variable
from hpcckpt.state.tree import Array, Finish, StateTree, TensorLeaf, as_bytes, flatten

_PIECE_BYTES = 16 << 20


class KeptState:
    """The values of a model, of its optimizers and of the user's state as they are now.

    Variables are not copied, on any device: until `give_back`, those that change need memory for the new values.

    Parameters
    ----------
    model : keras.Model
        The model.
    more : mapping
        What the user has saved besides.
    """

    def __init__(self, model: Any, more: Mapping[str, Any]) -> None:
        self._more = more
        tree = flatten(more)
        leaves = [*flatten({"model": model}).tensors.values(), *tree.tensors.values()]
        self._variables = [leaf.source for leaf in leaves if is_variable(leaf.source)]
        self._tensors = tensors(self._variables)
        self._containers = list(_containers(more))
        self._specs = {name: leaf.declaration.spec for name, leaf in tree.tensors.items()}
        self._arrays = {name: leaf.read().copy() for name, leaf in _arrays_of(tree).items()}
        self._objects = {name: copy.deepcopy(leaf.read()) for name, leaf in tree.objects.items()}

    def give_back(self) -> None:
        """Set what has changed since then to what it was. Independent."""
        for variable, before in zip(self._variables, self._tensors, strict=True):
            if not is_same_memory(before, tensors([variable])[0]):  # what is read is copied by an update
                variable.assign(before)
        for container, items in self._containers:
            _set_items(container, items)
        tree = flatten(self._more)
        if not self._is_as_kept(tree):
            self._assign(tree.resolved(self._specs, self._objects))

    def _is_as_kept(self, tree: StateTree) -> bool:
        arrays = _arrays_of(tree)
        return (
            arrays.keys() == self._arrays.keys()
            and {name: leaf.read() for name, leaf in tree.objects.items()} == self._objects
            and all(_is_equal(leaf.read(), self._arrays[name]) for name, leaf in arrays.items())
        )

    def _assign(self, tree: StateTree) -> None:
        for name in tree.tensors.keys() & self._arrays.keys():
            tree.tensors[name].assign(self._arrays[name])
        for name in tree.objects.keys() & self._objects.keys():
            tree.objects[name].assign(self._objects[name])
        for part in tree.finishes:
            if isinstance(part, Finish):
                part.run()


def _arrays_of(tree: StateTree) -> dict[str, TensorLeaf]:
    return {name: leaf for name, leaf in tree.tensors.items() if not is_variable(leaf.source)}


def _is_equal(one: Array, other: Array) -> bool:
    """Return True if two arrays have the same bits, without a copy of them. Pure."""
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    left, right = as_bytes(one), as_bytes(other)
    pieces = (slice(start, start + _PIECE_BYTES) for start in range(0, left.size, _PIECE_BYTES))
    return all(np.array_equal(left[piece], right[piece]) for piece in pieces)


def _containers(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the dicts and lists in a state, and what they hold."""
    if isinstance(value, MutableMapping):
        yield value, dict(value)
    elif isinstance(value, list):
        yield value, list(value)
    items = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    for item in items:
        yield from _containers(item)


def _set_items(container: Any, items: Any) -> None:
    if isinstance(container, list):
        container[:] = items
    elif list(container) != list(items) or any(container[key] is not item for key, item in items.items()):
        container.clear()
        container.update(items)
