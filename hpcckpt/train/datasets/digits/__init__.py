"""Digits: 1,797 handwritten digits of 8×8 pixels, which come with scikit-learn; below it `affnist`, generated."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcckpt.core.lazy import attach

if TYPE_CHECKING:
    from hpcckpt.train.datasets.digits import affnist
    from hpcckpt.train.datasets.digits.dataset import from_raw, from_tfrecord
    from hpcckpt.train.datasets.digits.parser import parse
    from hpcckpt.train.datasets.digits.raw_to_tfrecord import convert

_HOME = {"convert": "raw_to_tfrecord", "from_raw": "dataset", "from_tfrecord": "dataset", "parse": "parser"}

__all__ = ["affnist", "convert", "from_raw", "from_tfrecord", "parse"]

__getattr__, __dir__ = attach(__name__, __all__, _HOME, ("affnist",))
