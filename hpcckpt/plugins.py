"""Storage plugins in C and C++: ``hpcckpt.plugins.load("libmine.so")``, then ``Checkpointer(backend="plugin:mine")``.

``docs/plugins.md`` describes how to write one.  Everything here is Independent: each rank loads for itself.
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
