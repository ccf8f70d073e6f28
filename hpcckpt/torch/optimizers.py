"""PyTorch's optimizers, and what else of PyTorch's has a ``state_dict``: schedulers, gradient scalers.

``optimizer/param_groups`` is JSON, ``optimizer/state/0/exp_avg`` a tensor: 0 is the number of the parameter, as in
PyTorch's own ``state_dict``.  An optimizer that was built just now has no state; what the checkpoint has is made.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import torch

from hpcckpt.core.tensors import TensorSpec
from hpcckpt.errors import Problem
from hpcckpt.state.tree import (
    DynamicPart,
    Leaf,
    ObjectLeaf,
    Resolved,
    TensorLeaf,
    join,
    leaf_name,
    state_dict_leaves,
    tuple_like,
)

GROUPS = "param_groups"


def optimizer_leaves(optimizer: torch.optim.Optimizer, name: str) -> Iterator[Leaf]:
    """Yield the leaves of an optimizer.

    Raises
    ------
    StateError
        If its state holds what cannot be saved.
    """
    held = optimizer.state_dict()
    load = functools.partial(_load, optimizer)
    leaves = list(state_dict_leaves(held, name, load, is_free=True, default="torch"))
    own = [leaf_name(leaf) for leaf in leaves if isinstance(leaf, TensorLeaf | ObjectLeaf)]
    for leaf in leaves:
        yield _with_group_check(leaf, optimizer, name, own) if isinstance(leaf, DynamicPart) else leaf


def _with_group_check(
    part: DynamicPart, optimizer: torch.optim.Optimizer, name: str, own: Sequence[str]
) -> DynamicPart:
    """Return an optimizer's part that takes nothing from a checkpoint of other groups."""

    def resolve(specs: Mapping[str, TensorSpec], objects: Mapping[str, Any]) -> Resolved:
        problem = _groups_problem(optimizer, _group_sizes(objects, name), name)
        if problem is None:
            return part.resolve(specs, objects)
        theirs = [full for full in (*specs, *objects) if full.startswith(f"{name}/")]
        return Resolved(dropped=own, ignored=theirs, problems=[problem])

    return DynamicPart(resolve)


def stateful_leaves(obj: Any, name: str) -> Iterator[Leaf]:
    """Yield the leaves of something of PyTorch's that loads any ``state_dict`` of its class."""
    yield from state_dict_leaves(obj.state_dict(), name, obj.load_state_dict, is_free=True, default="torch")


def _group_sizes(objects: Mapping[str, Any], name: str) -> list[int] | None:
    """Return how many parameters each group of a checkpoint has; ``None`` if it does not show. Pure."""
    saved = objects.get(join(name, GROUPS))
    if saved is None:  # with tensors among them, which are saved one by one
        saved = []
        while (params := objects.get(f"{name}/{GROUPS}/{len(saved)}/params")) is not None:
            saved.append({"params": params})
    is_known = isinstance(saved, list) and all(isinstance(g, dict) and isinstance(g.get("params"), list) for g in saved)
    return [len(group["params"]) for group in saved] if is_known and saved else None


def _groups_problem(optimizer: torch.optim.Optimizer, then: list[int] | None, name: str) -> Problem | None:
    """Return how groups differ: known before anything is changed, while PyTorch would refuse them afterwards."""
    now = [len(group["params"]) for group in optimizer.param_groups]
    if then is None or then == now:
        return None
    return Problem(
        name,
        f"is another one: the checkpoint has groups of {', '.join(map(str, then))} parameters, this optimizer of "
        f"{', '.join(map(str, now))}",
    )


def _load(optimizer: torch.optim.Optimizer, found: Mapping[Any, Any]) -> None:
    """Load a state_dict, keeping the dtypes that PyTorch would change to those of the parameters."""
    saved = found.get("state", {})
    optimizer.load_state_dict(dict(found))
    for key, values in optimizer.state_dict().get("state", {}).items():
        if isinstance(values, MutableMapping) and isinstance(saved.get(key), Mapping):
            values.update({slot: _as_saved(value, saved[key].get(slot)) for slot, value in values.items()})


def _as_saved(loaded: Any, saved: Any) -> Any:
    """Return what was loaded, its tensors with the dtypes that they were saved with."""
    if isinstance(loaded, torch.Tensor) and isinstance(saved, torch.Tensor):
        return loaded if saved.dtype == loaded.dtype else saved.to(device=loaded.device)
    if isinstance(loaded, Mapping) and isinstance(saved, Mapping):
        return {key: _as_saved(value, saved.get(key)) for key, value in loaded.items()}
    if isinstance(loaded, list | tuple) and isinstance(saved, list | tuple) and len(loaded) == len(saved):
        items = [_as_saved(*pair) for pair in zip(loaded, saved, strict=True)]
        return tuple_like(items, loaded) if isinstance(loaded, tuple) else items
    return loaded
