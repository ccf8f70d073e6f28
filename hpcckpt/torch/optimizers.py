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
_OF_SCHEDULES = {"initial_lr", "max_lr", "min_lr", "base_momentum", "max_momentum", "swa_lr"}
"""What schedules add to the groups of any optimizer."""
_PARAMETERS = {"params", "param_names"}


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
    is_first = True
    for leaf in leaves:
        is_part = isinstance(leaf, DynamicPart)
        yield _with_group_check(leaf, optimizer, name, own, is_told=is_first) if isinstance(leaf, DynamicPart) else leaf
        is_first = is_first and not is_part


def _with_group_check(
    part: DynamicPart, optimizer: torch.optim.Optimizer, name: str, own: Sequence[str], *, is_told: bool
) -> DynamicPart:
    """Return an optimizer's part that takes nothing from a checkpoint of other groups, or of another class."""

    def resolve(specs: Mapping[str, TensorSpec], objects: Mapping[str, Any]) -> Resolved:
        problem = _groups_problem(optimizer, _group_sizes(objects, name), name)
        problem = problem or _class_problem(optimizer, _group_keys(specs, objects, name), name)
        if problem is None:
            return part.resolve(specs, objects)
        theirs = [full for full in (*specs, *objects) if full.startswith(f"{name}/")]
        return Resolved(dropped=own, ignored=theirs, problems=[problem] if is_told else [])

    return DynamicPart(resolve, name)


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


def _group_keys(specs: Mapping[str, TensorSpec], objects: Mapping[str, Any], name: str) -> set[str]:
    """Return the options that the first group of a checkpoint has; nothing if it does not show. Pure."""
    saved = objects.get(join(name, GROUPS))
    if isinstance(saved, list) and saved and isinstance(saved[0], dict):
        return set(saved[0]) - _PARAMETERS
    start = f"{name}/{GROUPS}/0/"
    found = {full[len(start) :].partition("/")[0] for full in (*specs, *objects) if full.startswith(start)}
    return found - _PARAMETERS


def _class_problem(optimizer: torch.optim.Optimizer, then: set[str], name: str) -> Problem | None:
    """Return why groups are of an optimizer of another class: each has options that the other lacks.

    Only PyTorch's own classes are judged. Options that a newer version of the class has added are no problem.
    """
    if not type(optimizer).__module__.startswith("torch.optim") or not then:
        return None
    now = set(optimizer.defaults)
    unknown, missing = then - now - _OF_SCHEDULES, now - then
    if unknown and missing:
        missing -= _added_by_class(optimizer, then)
    if not (unknown and missing):
        return None
    return Problem(
        name,
        f"is of another class: its groups in the checkpoint have {', '.join(sorted(unknown))}, and not "
        f"{', '.join(sorted(missing))} of {type(optimizer).__name__}",
    )


def _added_by_class(optimizer: torch.optim.Optimizer, keys: set[str]) -> set[str]:
    """Return the options that a class of PyTorch gives to groups of an older version of it."""
    cls: Any = type(optimizer)
    trial, group = cls.__new__(cls), dict[str, Any]({**dict.fromkeys(keys), "params": []})
    trial.defaults = dict(optimizer.defaults)
    try:
        trial.__setstate__({"state": {}, "param_groups": [group]})
    except Exception:  # noqa: BLE001 - it would refuse these groups itself
        return set(optimizer.defaults)
    return set(group) - keys


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
