"""Restored values that are kept until an epoch has begun, because callbacks change them in ``on_epoch_begin``.

A run that resumes within an epoch begins that epoch again.  The callbacks had changed the values before the save (an
annealed weight, a reset kernel, a learning rate), so they must not change them twice.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from hpcckpt.state.tf_hold import hold
from hpcckpt.state.tf_variables import is_variable
from hpcckpt.state.tree import Array, Finish, StateTree, flatten


class KeptState:
    """The values of a model, of its optimizers and of the user's state as they are now.

    Variables are held, not copied: until `give_back`, only those that change need more memory.

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
        self._held = hold(self._variables) if self._variables else []
        self._specs = {name: leaf.declaration.spec for name, leaf in tree.tensors.items()}
        self._arrays, self._objects = _values(tree)

    def give_back(self) -> None:
        """Set what has changed since then to what it was, and keep the values no longer. Independent."""
        now = hold(self._variables) if self._variables else []
        changed = [
            (variable, before)
            for variable, before, after in zip(self._variables, self._held, now, strict=True)
            if before.ctypes.data != after.ctypes.data  # what is held is copied by an update
        ]
        del now
        for variable, before in changed:
            variable.assign(before)
        self._variables, self._held = [], []
        self._give_back_more()

    def _give_back_more(self) -> None:
        tree = flatten(self._more)
        arrays, objects = _values(tree)
        if objects == self._objects and _bits(arrays) == _bits(self._arrays):
            return
        tree = tree.resolved(self._specs, self._objects)
        for name in tree.tensors.keys() & self._arrays.keys():
            tree.tensors[name].assign(self._arrays[name])
        for name in tree.objects.keys() & self._objects.keys():
            tree.objects[name].assign(self._objects[name])
        for part in tree.finishes:
            if isinstance(part, Finish):
                part.run()


def _values(tree: StateTree) -> tuple[dict[str, Array], dict[str, Any]]:
    """Return copies of the arrays and JSON values of a state; variables are not among them."""
    arrays = {name: leaf.read().copy() for name, leaf in tree.tensors.items() if not is_variable(leaf.source)}
    return arrays, {name: copy.deepcopy(leaf.read()) for name, leaf in tree.objects.items()}


def _bits(arrays: Mapping[str, Array]) -> dict[str, tuple[Any, ...]]:
    return {name: (array.dtype, array.shape, array.tobytes()) for name, array in arrays.items()}
