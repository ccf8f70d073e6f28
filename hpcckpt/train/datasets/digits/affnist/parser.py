"""affNIST as arrays, generated from digits that are at hand."""

from __future__ import annotations

from typing import Literal

import numpy as np

from hpcckpt.errors import OptionError, Problem, list_problems
from hpcckpt.train.datasets.checks import is_whole
from hpcckpt.train.datasets.digits import parser as small_digits
from hpcckpt.train.datasets.digits.affnist.affine import N_DRAWS, Bytes, mapped, warped
from hpcckpt.train.datasets.errors import DatasetNotFoundError, PackageMissingError
from hpcckpt.train.datasets.images import VALIDATION, Images, Raw, mixed_order, n_for_training
from hpcckpt.train.datasets.mnist import parser as mnist
from hpcckpt.train.datasets.mnist.raw import cached

Originals = Literal["mnist", "digits"]
TITLES = {"mnist": "MNIST", "digits": "scikit-learn's digits"}
N_IMAGES = 60_000
_PER_VALID = 6
"""Images to train with for each one to validate with, as MNIST has it."""
_SIDE, _MARGIN = 28, 4


def parse(n_images: int = N_IMAGES, variant: int = 0, originals: Originals | None = None) -> Raw:
    """Return affNIST, generated: images to train with, a sixth as many to validate with. Independent.

    Handwritten digits of 40×40 pixels, white on black. Each is an original of MNIST, scaled, sheared, turned and moved
    at random, as in affNIST: https://www.cs.toronto.edu/~tijmen/affNIST/. The files of its authors are not read, and
    their maps were drawn from ranges that were not compared with those here. Images to train and to validate with come
    from different originals.

    Parameters
    ----------
    n_images : int
        How many to train with; if there are fewer originals, each is mapped several times.
    variant : int
        Other maps.
    originals : {"mnist", "digits"}, optional
        What they are made from: MNIST, or scikit-learn's digits enlarged; by default MNIST if it is at hand.

    Raises
    ------
    DatasetNotFoundError
        If the originals are not there; says how to get them.
    OptionError
        If an argument makes no sense.
    """
    lowest = {"n_images": (n_images, _PER_VALID), "variant": (variant, 0)}
    problems = [
        Problem(name, f"{value!r} – a whole number from {low} on")
        for name, (value, low) in lowest.items()
        if not is_whole(value, low)
    ]
    if originals is not None and originals not in TITLES:
        problems.append(Problem("originals", f"{originals!r} – one of {', '.join(TITLES)}"))
    if problems:
        raise OptionError(list_problems(problems))
    train, valid = _originals(at_hand() if originals is None else originals)
    return Raw(
        _generated(train, n_images, [variant, 0]), _generated(valid, n_images // _PER_VALID, [variant, 1]), n_classes=10
    )


def at_hand() -> Originals:
    """Return which originals there are: MNIST, or else the digits. Root only.

    Raises
    ------
    DatasetNotFoundError
        If there are none; says how to get them.
    """
    try:
        cached()
    except DatasetNotFoundError as error:
        try:
            small_digits.parse()
        except PackageMissingError:
            raise DatasetNotFoundError(f"affNIST is generated from MNIST: {error}") from error
        return "digits"
    return "mnist"


def _generated(originals: Images, n_images: int, seed: list[int]) -> Images:
    order = mixed_order(len(originals))
    chosen = originals.take(order[np.arange(n_images) % len(order)])
    draws = np.random.default_rng(seed).random((n_images, N_DRAWS))
    return Images(mapped(chosen.pixels[..., 0], draws)[..., np.newaxis], chosen.labels)


def _originals(name: Originals) -> tuple[Images, Images]:
    """Return digits of 28×28 pixels, to make images for training and for validation of."""
    if name == "mnist":
        raw = mnist.parse()
        assert raw.valid is not None
        return raw.train, raw.valid
    raw = small_digits.parse()
    whole = Images(_enlarged(raw.train.pixels, raw.white), raw.train.labels)
    order = mixed_order(len(whole))
    cut = n_for_training(len(whole), VALIDATION)
    return whole.take(order[:cut]), whole.take(order[cut:])


def _enlarged(pixels: Bytes, white: int) -> Bytes:
    """Return small images as large as MNIST's digits are, with the same margin."""
    n, side = len(pixels), _SIDE - 2 * _MARGIN
    bright = (pixels[..., 0].astype(np.int64) * 255 // white).astype(np.uint8)
    scale = np.tile(np.eye(2) * side / pixels.shape[1], (n, 1, 1))
    return warped(bright, scale, np.zeros((n, 2)), _SIDE)[..., np.newaxis]
