"""What a parser returns, and which of it is for training."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hpcckpt.errors import OptionError

Pixels = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.int64]
VALIDATION = 0.2
"""The share for validation of a data set that does not bring its own."""


@dataclass(frozen=True, slots=True)
class Images:
    """Images of one size, with labels.

    Attributes
    ----------
    pixels : numpy.ndarray
        Bytes, of shape (images, height, width, channels).
    labels : numpy.ndarray
        The class of each image, counted from 0.
    """

    pixels: Pixels
    labels: Integers

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, positions: Integers) -> Images:
        """Return the images at these positions, in this order."""
        return Images(self.pixels[positions], self.labels[positions])


class Raw(NamedTuple):
    """A data set as its parser returns it.

    Attributes
    ----------
    train : Images
        All images, or the training images.
    valid : Images or None
        The validation images; ``None`` if the data set does not define them.
    n_classes : int
        Number of classes.
    white : int
        The value of a white pixel, which becomes 1.0.
    """

    train: Images
    valid: Images | None
    n_classes: int
    white: int = 255


def mixed_order(n: int) -> Integers:
    """Return the numbers below `n` in an order without rhyme, the same on every machine and in every version.

    A share for validation is taken off its end, so that classes and writers that follow each other are in both parts.
    """
    with np.errstate(over="ignore"):
        z = np.arange(1, n + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)  # SplitMix64
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return np.argsort(z ^ (z >> np.uint64(31)), kind="stable").astype(np.int64)


def n_for_training(n: int, validation: float) -> int:
    """Return how many of `n` images are for training; the others, at the end, are for validation.

    Raises
    ------
    OptionError
        If `validation` is no share, or leaves nothing on one side.
    """
    if isinstance(validation, bool) or not 0 < validation < 1:
        raise OptionError(f"validation: {validation!r} – a share of the images, between 0 and 1, or nothing")
    n_valid = round(n * validation)
    if not 0 < n_valid < n:
        raise OptionError(f"validation: {validation} of {n} images leaves nothing to train or to validate with")
    return n - n_valid


def only(raw: Raw, classes: Collection[int]) -> Raw:
    """Return the images of some classes, renumbered in the order given.

    Raises
    ------
    OptionError
        If there is no such class.
    """
    wanted = list(classes)
    if not wanted or len(set(wanted)) < len(wanted) or not set(wanted) <= set(range(raw.n_classes)):
        raise OptionError(f"classes: {wanted} – some of 0 to {raw.n_classes - 1}, each once")
    anew = np.full(raw.n_classes, -1, np.int64)
    anew[wanted] = np.arange(len(wanted))

    def choose(images: Images) -> Images:
        chosen = images.take(np.flatnonzero(anew[images.labels] >= 0))
        return Images(chosen.pixels, anew[chosen.labels])

    valid = None if raw.valid is None else choose(raw.valid)
    return raw._replace(train=choose(raw.train), valid=valid, n_classes=len(wanted))


def checked(raw: Raw, name: str) -> Raw:
    """Return what a parser made, if it is what the other parts count on.

    Raises
    ------
    OptionError
        Naming what is wrong: a mistake in the parser.
    """
    for part, images in (("train", raw.train), ("valid", raw.valid)):
        if images is not None:
            _check(images, raw.n_classes, f"{name}: {part}")
    if raw.valid is not None and raw.valid.pixels.shape[1:] != raw.train.pixels.shape[1:]:
        raise OptionError(f"{name}: images for training and for validation differ in shape")
    return raw


def _check(images: Images, n_classes: int, where: str) -> None:
    pixels, labels = images.pixels, images.labels
    _demand(pixels.ndim == 4 and pixels.dtype == np.uint8, f"{where}: pixels are not bytes in 4 dimensions", pixels)
    _demand(labels.shape == pixels.shape[:1], f"{where}: there is not one label for each image", labels)
    _demand(len(labels) > 0, f"{where}: there are no images", labels)
    _demand(
        labels.min() >= 0 and labels.max() < n_classes, f"{where}: a label is not one of {n_classes} classes", labels
    )


def _demand(is_so: Any, text: str, array: npt.NDArray[Any]) -> None:
    if not is_so:
        raise OptionError(f"{text} (it has {array.dtype}, shape {array.shape}); see to it in its parser")
