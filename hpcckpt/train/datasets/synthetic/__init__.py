"""Synthetic images: patterns and noise, as many and as large as wanted; nothing is downloaded."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpcckpt.train.datasets.synthetic.dataset import from_raw, from_tfrecord
    from hpcckpt.train.datasets.synthetic.parser import parse
    from hpcckpt.train.datasets.synthetic.raw_to_tfrecord import convert

_HOME = {"convert": "raw_to_tfrecord", "from_raw": "dataset", "from_tfrecord": "dataset", "parse": "parser"}

__all__ = ["convert", "from_raw", "from_tfrecord", "parse"]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
