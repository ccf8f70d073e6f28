"""PyTorch's optimizers, and what else of PyTorch's has a ``state_dict``: schedulers, gradient scalers.

``optimizer/param_groups`` is JSON, ``optimizer/state/0/exp_avg`` a tensor: 0 is the number of the parameter, as in
PyTorch's own ``state_dict``.  An optimizer that was built just now has no state; what the checkpoint has is made.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from hpcckpt.core.tensors import TensorSpec
from hpcckpt.errors import StateMismatchError
from hpcckpt.state.tree import DynamicPart, Leaf, Resolved, join, state_dict_leaves

GROUPS = "param_groups"


def optimizer_leaves(optimizer: torch.optim.Optimizer, name: str) -> Iterator[Leaf]:
    """Yield the leaves of an optimizer.

    Raises
    ------
    StateError
        If its state holds what cannot be saved.
    """

    def check(_specs: Mapping[str, TensorSpec], objects: Mapping[str, Any]) -> Resolved:
        _check_groups(optimizer, objects.get(join(name, GROUPS)), name)
        return Resolved()

    yield DynamicPart(check)
    held = optimizer.state_dict()
    yield from state_dict_leaves(held, name, lambda found: _load(optimizer, found), is_free=True, default="torch")


def stateful_leaves(obj: Any, name: str) -> Iterator[Leaf]:
    """Yield the leaves of something of PyTorch's that loads any ``state_dict`` of its class."""
    yield from state_dict_leaves(obj.state_dict(), name, obj.load_state_dict, is_free=True, default="torch")


def _check_groups(optimizer: torch.optim.Optimizer, saved: Any, name: str) -> None:
    """Refuse another optimizer's state before anything is changed; PyTorch would do so afterwards."""
    now = [len(group["params"]) for group in optimizer.param_groups]
    if not isinstance(saved, list) or not all(isinstance(g, dict) and isinstance(g.get("params"), list) for g in saved):
        return  # with tensors among them, which are loaded one by one
    then = [len(group["params"]) for group in saved]
    if now != then:
        raise StateMismatchError(
            f"{name}: the checkpoint has groups of {', '.join(map(str, then))} parameters, this optimizer of "
            f"{', '.join(map(str, now))}; build it for the same model, with the same groups"
        )


def _load(optimizer: torch.optim.Optimizer, found: Mapping[Any, Any]) -> None:
    """Load a state_dict, keeping the dtypes that PyTorch would change to those of the parameters."""
    dtypes = {key: _tensors(values) for key, values in found.get("state", {}).items()}
    optimizer.load_state_dict(dict(found))
    for key, values in optimizer.state_dict()["state"].items():
        for slot, loaded in _tensors(values).items():
            saved = dtypes.get(key, {}).get(slot)
            if saved is not None and saved.dtype != loaded.dtype:
                values[slot] = saved.to(device=loaded.device)


def _tensors(values: Any) -> dict[Any, torch.Tensor]:
    items = values.items() if isinstance(values, Mapping) else ()
    return {slot: value for slot, value in items if isinstance(value, torch.Tensor)}
