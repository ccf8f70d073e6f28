"""Adapter for PyTorch: tensors, modules, optimizers, schedulers, gradient scalers, generators."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from hpcckpt.state.tree import Array, Leaf, TensorLeaf, declare
from hpcckpt.torch.modules import module_leaves
from hpcckpt.torch.optimizers import optimizer_leaves, stateful_leaves
from hpcckpt.torch.sampling import BatchSampler
from hpcckpt.torch.tensors import as_array, from_array, tensor_leaf

MODEL, OPTIMIZER, TENSOR, STATE = "model", "optimizer", "tensor", "state"
"""What a thing is called that is the whole state."""


def leaves(obj: Any, name: str) -> Iterator[Leaf] | None:
    """Return the leaves of something of PyTorch's; ``None`` for anything else. Independent.

    Parameters
    ----------
    obj : object
        The thing.
    name : str
        What the names begin with; empty for the state itself.

    Raises
    ------
    StateError
        If it holds what cannot be saved.
    """
    if isinstance(obj, torch.Tensor):
        return iter([tensor_leaf(obj, name or TENSOR)])
    if isinstance(obj, torch.nn.Module):
        return module_leaves(obj, name or MODEL)
    if isinstance(obj, torch.optim.Optimizer):
        return optimizer_leaves(obj, name or OPTIMIZER)
    if isinstance(obj, torch.Generator):
        return iter([_generator_leaf(obj, name or STATE)])
    return stateful_leaves(obj, name or STATE) if _is_tolerant(obj) else None


def _is_tolerant(obj: Any) -> bool:
    """Return True for PyTorch's own classes, and ours, whose ``state_dict`` differs between versions."""
    if isinstance(obj, torch.optim.lr_scheduler.LRScheduler | torch.amp.GradScaler | BatchSampler):
        return True
    is_own = type(obj).__module__.partition(".")[0] == "torch"
    return is_own and hasattr(obj, "state_dict") and hasattr(obj, "load_state_dict")


def _generator_leaf(generator: torch.Generator, name: str) -> TensorLeaf:
    """Return the leaf of a random stream, of which each rank has its own."""
    state = as_array(generator.get_state())

    def assign(new: Array) -> None:
        generator.set_state(from_array(new, torch.uint8))

    return TensorLeaf(declare(state, name, "per-rank"), lambda: state, assign)
