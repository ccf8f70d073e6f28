"""PyTorch shell: save and restore trainings, and the adapter that names their state.

Importing this package loads PyTorch only when a name is used.

A state that holds PyTorch's things, ``{"model": model, "optimizer": optimizer}``, gives these names:

``model/<key>``
    Parameters and buffers, by the keys of ``model.state_dict()``.
``optimizer/param_groups``, ``optimizer/state/<number>/<slot>``
    As in ``optimizer.state_dict()``; JSON values are in the manifest.
``scheduler/<attribute>``
    As in its ``state_dict()``; the same for any object that has one.

`save` and `restore` take a training by its parts; a `Checkpointer` takes them in its state.  ``save(state_dict, FILE)``
and ``load(FILE)`` write and read one safetensors file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcckpt.core.lazy import attach

if TYPE_CHECKING:
    from hpcckpt.torch.functions import load, restore, save
    from hpcckpt.torch.modules import batch_norm
    from hpcckpt.torch.perrank import per_rank
    from hpcckpt.torch.rng import rng_state
    from hpcckpt.torch.sampling import BatchSampler
    from hpcckpt.torch.tensors import as_array

_HOME = {
    "BatchSampler": "sampling",
    "as_array": "tensors",
    "batch_norm": "modules",
    "load": "functions",
    "per_rank": "perrank",
    "restore": "functions",
    "rng_state": "rng",
    "save": "functions",
}

__all__ = ["BatchSampler", "as_array", "batch_norm", "load", "per_rank", "restore", "rng_state", "save"]

__getattr__, __dir__ = attach(__name__, __all__, _HOME)
