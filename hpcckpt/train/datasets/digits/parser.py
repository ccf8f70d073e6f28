"""scikit-learn's digits as arrays."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from hpcckpt.train.datasets.errors import PackageMissingError
from hpcckpt.train.datasets.images import Images, Raw

SIDE = 8
WHITE = 16


def parse() -> Raw:
    """Return scikit-learn's digits: 1,797 images in 10 classes, without a part for validation. Independent.

    Handwritten digits of 8×8 pixels, white on black, in 17 shades: the test set of
    https://archive.ics.uci.edu/dataset/80/optical+recognition+of+handwritten+digits, which scikit-learn brings along.

    Raises
    ------
    PackageMissingError
        If scikit-learn is not installed.
    """
    pixels, labels = _module().load_digits(return_X_y=True)
    images = np.asarray(pixels).astype(np.uint8).reshape(-1, SIDE, SIDE, 1)
    return Raw(Images(images, np.asarray(labels).astype(np.int64)), None, n_classes=10, white=WHITE)


def _module() -> Any:
    try:
        return importlib.import_module("sklearn.datasets")
    except ImportError as error:
        raise PackageMissingError(
            f"the digits come with scikit-learn, which cannot be loaded ({error}): pip install 'hpcckpt[digits]'"
        ) from error
