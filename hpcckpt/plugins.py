"""Storage plugins in C and C++: ``hpcckpt.plugins.load("libmine.so")``, then ``Checkpointer(backend="plugin:mine")``.

How one is written stands in ``docs/plugins.md``.  Everything here is Independent: ranks load alike, each for itself.
"""

from __future__ import annotations

from hpcckpt.native.plugins import (
    Instance,
    LoadedBackend,
    PluginContext,
    PluginTensor,
    available,
    find,
    load,
    loaded,
    search_path,
)

__all__ = [
    "Instance",
    "LoadedBackend",
    "PluginContext",
    "PluginTensor",
    "available",
    "find",
    "load",
    "loaded",
    "search_path",
]
