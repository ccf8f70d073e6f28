"""Synthetic images: patterns and noise, as many and as large as wanted; nothing is downloaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcckpt.core.lazy import attach

if TYPE_CHECKING:
    from hpcckpt.train.datasets.synthetic.dataset import from_raw, from_tfrecord
    from hpcckpt.train.datasets.synthetic.parser import parse
    from hpcckpt.train.datasets.synthetic.raw_to_tfrecord import convert

_HOME = {"convert": "raw_to_tfrecord", "from_raw": "dataset", "from_tfrecord": "dataset", "parse": "parser"}

__all__ = ["convert", "from_raw", "from_tfrecord", "parse"]

__getattr__, __dir__ = attach(__name__, __all__, _HOME)
