"""Shards of TFRecords: encoded images with labels in many files, of `folders.convert` or of other programs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcckpt.core.lazy import attach

if TYPE_CHECKING:
    from hpcckpt.train.datasets.shards.dataset import from_tfrecord

_HOME = {"from_tfrecord": "dataset"}

__all__ = ["from_tfrecord"]

__getattr__, __dir__ = attach(__name__, __all__, _HOME)
