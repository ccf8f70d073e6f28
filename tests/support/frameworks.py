"""What the tests of the frameworks' shells share: TensorFlow imported without its own warnings, and marks."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

import pytest

FRAMEWORKS_WARN = ("ignore::DeprecationWarning", "ignore::FutureWarning")


def import_tensorflow() -> bool:
    """Import TensorFlow and Keras, if they are there, so that what they warn of at import is over; say if they are."""
    if find_spec("tensorflow") is None or find_spec("keras") is None:
        return False
    if not os.environ.get("HPCCKPT_GPU"):  # scripts/dev/gpu.sh
        os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import keras  # noqa: F401
        import tensorflow as tf  # noqa: F401
    return True


def mark(items: Iterable[pytest.Item], here: Path, *names: str) -> None:
    """Mark the tests below a directory by name, and let the frameworks there warn of what is old."""
    inside = f"{here}{os.sep}"
    for item in items:
        if str(item.path).startswith(inside):
            for name in names:
                item.add_marker(getattr(pytest.mark, name))
            for warning in FRAMEWORKS_WARN:
                item.add_marker(pytest.mark.filterwarnings(warning))
