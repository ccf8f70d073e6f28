"""PyTorch shell: save and restore trainings, and the adapter that names their state.

Importing this package loads PyTorch only when a name is used.

A state that holds PyTorch's things, ``{"model": model, "optimizer": optimizer}``, gives these names:

``model/<key>``
    Parameters and buffers, by the keys of ``model.state_dict()``.
``optimizer/param_groups``, ``optimizer/state/<number>/<slot>``
    As in ``optimizer.state_dict()``; what is JSON stands in the manifest.
``scheduler/<attribute>``
    As in its ``state_dict()``; so with anything that has one.

`save` and `restore` take a training by its parts; a `Checkpointer` takes them in its state.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpcckpt.torch.functions import restore, save
    from hpcckpt.torch.modules import batch_norm
    from hpcckpt.torch.perrank import per_rank
    from hpcckpt.torch.rng import rng_state
    from hpcckpt.torch.sampling import BatchSampler
    from hpcckpt.torch.tensors import as_array

_HOME = {
    "BatchSampler": "hpcckpt.torch.sampling",
    "as_array": "hpcckpt.torch.tensors",
    "batch_norm": "hpcckpt.torch.modules",
    "per_rank": "hpcckpt.torch.perrank",
    "restore": "hpcckpt.torch.functions",
    "rng_state": "hpcckpt.torch.rng",
    "save": "hpcckpt.torch.functions",
}

__all__ = ["BatchSampler", "as_array", "batch_norm", "per_rank", "restore", "rng_state", "save"]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'hpcckpt.torch' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
