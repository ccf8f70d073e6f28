"""Objects of which each rank has its own: data loaders, samplers, environments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpcckpt.core.dtypes import dtype_token
from hpcckpt.core.tensors import TensorSpec
from hpcckpt.state.packing import pack, unpack
from hpcckpt.state.tree import Finish, PerRank, flatten


class PerRankState:
    """Something with a ``state_dict`` that differs between ranks; see `per_rank`."""

    def __init__(self, obj: Any) -> None:
        self._obj = obj

    def state_dict(self) -> dict[str, Any]:
        """Return the object's state as one line of bytes. Independent."""
        tree = flatten(self._obj)
        values = {name: leaf.read() for name, leaf in tree.objects.items()}
        return {"state": PerRank(pack({name: leaf.read() for name, leaf in tree.tensors.items()}, values))}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Hand its state to the object. Independent."""
        arrays, values = unpack(state["state"].value)
        specs = {name: TensorSpec(name, dtype_token(array.dtype), array.shape) for name, array in arrays.items()}
        tree = flatten(self._obj).resolved(specs, values)
        for name in arrays.keys() & tree.tensors.keys():
            tree.tensors[name].assign(arrays[name])
        for name in values.keys() & tree.objects.keys():
            tree.objects[name].assign(values[name])
        for finish in tree.finishes:
            if isinstance(finish, Finish):
                finish.run()


def per_rank(obj: Any) -> PerRankState:
    """Return `obj` as a part of a state that each rank has for itself. Independent.

    On another number of ranks it is left as it is, with a warning.

    Parameters
    ----------
    obj : object
        Anything with ``state_dict`` and ``load_state_dict``: a data loader that knows its position.
    """
    return PerRankState(obj)
