"""Random affine maps of images, of the kinds of affNIST: https://www.cs.toronto.edu/~tijmen/affNIST/.

TensorFlow Federated documents the same turns and shears for affNIST, and scales from 0.8 to 1.25; the figures of its
authors were not seen. A digit is scaled by 0.8 to 1.2, vertically and horizontally on its own, sheared by -0.2 to 0.2,
turned by -20 to 20 degrees, and moved to any place where all of it is still within the image.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Bytes = npt.NDArray[np.uint8]
SIDE = 40
N_DRAWS = 6
"""Random numbers of each map: scales, shear, turn, place."""
_SCALE, _SHEAR, _TURN = (0.8, 1.2), (-0.2, 0.2), (-np.pi / 9, np.pi / 9)
_CHUNK = 1000


def mapped(images: Bytes, draws: Floats, side: int = SIDE) -> Bytes:
    """Return images on a larger square, each mapped by what was drawn for it. Pure.

    Parameters
    ----------
    images : numpy.ndarray
        Bytes of shape (n, height, width), light on black.
    draws : numpy.ndarray
        Numbers from 0 to 1 of shape (n, `N_DRAWS`).
    side : int
        Height and width of what is returned.
    """
    result = np.empty((len(images), side, side), np.uint8)
    for begin in range(0, len(images), _CHUNK):
        part = slice(begin, begin + _CHUNK)
        linear = matrices(draws[part])
        result[part] = warped(images[part], linear, _shifts(images[part], linear, draws[part], side), side)
    return result


def matrices(draws: Floats) -> Floats:
    """Return the linear part of the maps: from rows and columns of an original, scaled, then sheared, then turned."""
    vertical, horizontal = (_within(_SCALE, draws[:, n]) for n in (0, 1))
    shear, turn = _within(_SHEAR, draws[:, 2]), _within(_TURN, draws[:, 3])
    sine, cosine = np.sin(turn), np.cos(turn)
    rows = [[cosine * vertical, -sine * horizontal], [sine * vertical, cosine * horizontal]]
    result = np.moveaxis(np.array(rows), -1, 0)
    result[:, :, 0] += (shear * vertical)[:, np.newaxis] * np.stack([-sine, cosine], 1)
    return result


def warped(images: Bytes, linear: Floats, shifts: Floats, side: int) -> Bytes:
    """Return images mapped about their centre, and moved from the centre of the result by rows and columns. Pure.

    Each pixel of the result is interpolated between the four of the original that are nearest to where it comes from.
    """
    height, width = images.shape[1:]
    places = _grid(side, side) - shifts[:, :, np.newaxis]
    rows, columns = np.moveaxis(np.linalg.inv(linear) @ places, 1, 0)
    rows = np.clip(rows + (height - 1) / 2, -1, height) + 1  # counted with a black edge of one pixel
    columns = np.clip(columns + (width - 1) / 2, -1, width) + 1
    edged = np.pad(images.astype(np.float32), ((0, 0), (1, 2), (1, 2))).reshape(len(images), -1)
    top, left = np.floor(rows).astype(np.int64), np.floor(columns).astype(np.int64)
    below, right = rows - top, columns - left
    first = top * (width + 3) + left
    total: Any = 0
    for step, share in (
        (0, (1 - below) * (1 - right)),
        (1, (1 - below) * right),
        (width + 3, below * (1 - right)),
        (width + 4, below * right),
    ):
        total = total + share * np.take_along_axis(edged, first + step, 1)
    result: Bytes = np.rint(total).clip(0, 255).astype(np.uint8).reshape(-1, side, side)
    return result


def _shifts(images: Bytes, linear: Floats, draws: Floats, side: int) -> Floats:
    """Return where to move the images: anywhere that leaves all that is not black within the result."""
    places = linear @ _grid(*images.shape[1:])
    is_ink = images.reshape(len(images), 1, -1) > 0
    lowest = np.where(is_ink, places, np.inf).min(-1)
    highest = np.where(is_ink, places, -np.inf).max(-1)
    edge = (side - 1) / 2
    lower, upper = -edge - lowest, edge - highest
    is_empty = ~np.isfinite(lower)
    lower, upper = np.where(is_empty, 0, lower), np.where(is_empty, 0, upper)
    centre = (lower + upper) / 2
    result: Floats = centre + (draws[:, 4:6] - 0.5) * np.maximum(upper - lower, 0)
    return result


def _grid(height: int, width: int) -> Floats:
    """Return rows and columns of all pixels, from the centre, of shape (2, pixels)."""
    rows, columns = np.mgrid[:height, :width].astype(np.float64)
    return np.stack([rows.ravel() - (height - 1) / 2, columns.ravel() - (width - 1) / 2])


def _within(limits: tuple[float, float], draws: Floats) -> Floats:
    low, high = limits
    return low + (high - low) * draws
