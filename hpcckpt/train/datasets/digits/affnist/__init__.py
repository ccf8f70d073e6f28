"""affNIST, generated: digits of 40×40 pixels, each moved, turned, sheared and scaled at random."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcckpt.core.lazy import attach

if TYPE_CHECKING:
    from hpcckpt.train.datasets.digits.affnist.dataset import from_raw, from_tfrecord
    from hpcckpt.train.datasets.digits.affnist.parser import parse
    from hpcckpt.train.datasets.digits.affnist.raw_to_tfrecord import convert

_HOME = {"convert": "raw_to_tfrecord", "from_raw": "dataset", "from_tfrecord": "dataset", "parse": "parser"}

__all__ = ["convert", "from_raw", "from_tfrecord", "parse"]

__getattr__, __dir__ = attach(__name__, __all__, _HOME)
