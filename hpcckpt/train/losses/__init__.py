"""Losses that Keras does not have; importing it loads no framework."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcckpt.core.lazy import attach

if TYPE_CHECKING:
    from hpcckpt.train.losses.smoothed import SmoothedSparseCategoricalCrossentropy

_HOME = {
    "SmoothedSparseCategoricalCrossentropy": "smoothed",
}

__all__ = ["SmoothedSparseCategoricalCrossentropy"]

__getattr__, __dir__ = attach(__name__, __all__, _HOME)
