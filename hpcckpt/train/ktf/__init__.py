"""The names of ktf for programs: ``ktf.train``, ``ktf.models``, ``ktf.datasets``, as configurations have them.

    import hpcckpt.train.ktf as ktf

    @ktf.train.export_config
    class MyCustomModel(ktf.models.OneHeadNet): ...

Nothing is defined here: each is what `hpcckpt.train` has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcckpt.core.lazy import attach

if TYPE_CHECKING:
    from hpcckpt.train.ktf import batches, datasets, losses, models, train

_MODULES = ("batches", "datasets", "losses", "models", "train")

__all__ = ["batches", "datasets", "losses", "models", "train"]

__getattr__, __dir__ = attach(__name__, __all__, {}, _MODULES)
