"""Synthetic images as arrays."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hpcckpt.errors import OptionError, Problem, list_problems
from hpcckpt.train.datasets.checks import is_whole
from hpcckpt.train.datasets.images import Images, Raw

_CELLS = 4
"""Cells of a pattern on each side."""
_GREY, _CONTRAST, _NOISE = 128, 40, 40


def parse(n_images: int = 2000, size: int = 32, channels: int = 3, n_classes: int = 10, variant: int = 0) -> Raw:
    """Return images that are made up: each class has a pattern of 4×4 cells, each image different noise. Independent.

    A network can learn them, so they do for a first try, for a test, and to see what memory and time a size takes.

    Parameters
    ----------
    n_images : int
        How many, as many of each class.
    size : int
        Height and width.
    channels, n_classes : int
        How many.
    variant : int
        Other patterns and other noise.

    Raises
    ------
    OptionError
        If there cannot be such images.
    """
    lowest = {"n_images": (n_images, 2), "size": (size, 1), "channels": (channels, 1), "n_classes": (n_classes, 1)}
    values = lowest | {"variant": (variant, 0)}
    problems = [Problem(name, f"{value!r} – a whole number from {low} on") for name, (value, low) in values.items()
                if not is_whole(value, low)]  # fmt: skip
    if problems:
        raise OptionError(list_problems(problems))
    patterns = np.random.default_rng(variant).choice(
        np.array([-1, 1], np.float32), (n_classes, _CELLS, _CELLS, channels)
    )
    cells = np.arange(size) * _CELLS // size
    templates = _GREY + _CONTRAST * patterns[:, cells][:, :, cells]
    pixels = np.empty((n_images, size, size, channels), np.uint8)
    for number, image in enumerate(pixels):
        image[...] = _noisy(templates[number % n_classes], number, variant)
    return Raw(Images(pixels, np.arange(n_images, dtype=np.int64) % n_classes), None, n_classes)


def _noisy(template: npt.NDArray[np.float32], number: int, variant: int) -> npt.NDArray[np.float32]:
    noise = np.random.default_rng([variant, number]).standard_normal(template.shape, np.float32)
    return np.clip(template + _NOISE * noise, 0, 255)
