"""Losses that Keras does not have; importing it loads no framework."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpcckpt.train.losses.smoothed import SmoothedSparseCategoricalCrossentropy

_HOME = {
    "SmoothedSparseCategoricalCrossentropy": "smoothed",
}

__all__ = ["SmoothedSparseCategoricalCrossentropy"]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
