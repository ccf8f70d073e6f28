"""Folders of images: a directory for each class, PNG and JPEG files in it, as many as there are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcckpt.core.lazy import attach

if TYPE_CHECKING:
    from hpcckpt.train.datasets.folders.dataset import from_raw
    from hpcckpt.train.datasets.folders.raw_to_tfrecord import convert

_HOME = {"convert": "raw_to_tfrecord", "from_raw": "dataset"}

__all__ = ["convert", "from_raw"]

__getattr__, __dir__ = attach(__name__, __all__, _HOME)
