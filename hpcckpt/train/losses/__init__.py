"""Losses that Keras does not have; importing it loads no framework."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcckpt.core.lazy import attach

if TYPE_CHECKING:
    from hpcckpt.train.losses.heads import WeightedLoss, per_head
    from hpcckpt.train.losses.smoothed import SmoothedSparseCategoricalCrossentropy
    from hpcckpt.train.losses.triplet import TripletLoss, triplet_accuracy

_HOME = {
    "SmoothedSparseCategoricalCrossentropy": "smoothed",
    "TripletLoss": "triplet",
    "WeightedLoss": "heads",
    "per_head": "heads",
    "triplet_accuracy": "triplet",
}

__all__ = [
    "SmoothedSparseCategoricalCrossentropy",
    "TripletLoss",
    "WeightedLoss",
    "per_head",
    "triplet_accuracy",
]

__getattr__, __dir__ = attach(__name__, __all__, _HOME)
