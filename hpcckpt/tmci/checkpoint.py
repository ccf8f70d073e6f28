"""Callback and functions, under the name that TMCI has for them: ``from tmci.checkpoint import save_weights``."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from hpcckpt.tmci.functions import load_variables, load_weights, save_variables, save_weights

if TYPE_CHECKING:
    from hpcckpt.tmci.callback import CheckpointCallback

__all__ = ["CheckpointCallback", "load_variables", "load_weights", "save_variables", "save_weights"]


def __getattr__(name: str) -> Any:
    if name == "CheckpointCallback":
        return importlib.import_module("hpcckpt.tmci.callback").CheckpointCallback
    raise AttributeError(f"module 'hpcckpt.tmci.checkpoint' has no attribute {name!r}")
