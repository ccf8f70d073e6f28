"""Objects of which each rank has its own: data loaders, samplers, environments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hpcckpt.core.dtypes import dtype_token
from hpcckpt.core.tensors import TensorSpec
from hpcckpt.errors import Problem, StateMismatchError, list_problems
from hpcckpt.state.packing import pack, unpack
from hpcckpt.state.tree import Finish, PerRank, StateTree, flatten


class PerRankState:
    """Something with a ``state_dict`` that differs between ranks; see `per_rank`."""

    def __init__(self, obj: Any) -> None:
        self._obj = obj

    def state_dict(self) -> dict[str, Any]:
        """Return the object's state as one line of bytes. Independent."""
        tree = flatten(self._obj, is_free=True)
        values = {name: leaf.read() for name, leaf in tree.objects.items()}
        return {"state": PerRank(pack({name: leaf.read() for name, leaf in tree.tensors.items()}, values))}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Pass its state to the object. Independent.

        Raises
        ------
        StateMismatchError
            If a model or another part of fixed names in it has other names or shapes; names every one.
        """
        arrays, values = unpack(state["state"].value)
        specs = {name: TensorSpec(name, dtype_token(array.dtype), array.shape) for name, array in arrays.items()}
        tree = flatten(self._obj, is_free=True).resolved(specs, values)
        problems = list(_differences(tree, specs, values))
        if problems:
            name = type(self._obj).__qualname__
            raise StateMismatchError(
                f"what this rank saved of its {name} does not fit: {list_problems(problems)}; build the same {name} "
                "and restore again: other parts of the state are restored already"
            )
        for name in arrays.keys() & tree.tensors.keys():
            tree.tensors[name].assign(arrays[name])
        for name in values.keys() & tree.objects.keys():
            tree.objects[name].assign(values[name])
        for finish in tree.finishes:
            if isinstance(finish, Finish):
                finish.run()


def _differences(tree: StateTree, specs: Mapping[str, TensorSpec], values: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield how the leaves of an object and what was saved of it differ. Pure."""
    yield from tree.problems
    saved, own = {*specs, *values} - tree.ignored, {*tree.tensors, *tree.objects}
    yield from (Problem(repr(name), "is in the state but not in the checkpoint") for name in sorted(own - saved))
    yield from (Problem(repr(name), "is in the checkpoint but not in the state") for name in sorted(saved - own))
    for name in tree.tensors.keys() & specs.keys():
        now, then = tree.tensors[name].declaration.spec, specs[name]
        if now.kind != "per-rank" and now.shape != then.shape:
            yield Problem(repr(name), f"has shape {then.shape} in the checkpoint and {now.shape} in the state")


def per_rank(obj: Any) -> PerRankState:
    """Return `obj` as a part of a state that differs between ranks. Independent.

    A restore on another number of ranks leaves it as it is, with a warning.

    Parameters
    ----------
    obj : object
        Anything with ``state_dict`` and ``load_state_dict``: a data loader that knows its position.
    """
    return PerRankState(obj)
