"""Encoded images as bytes of one size; an image that is not whole is refused by its name."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from hpcckpt.errors import OptionError
from hpcckpt.train.datasets.checks import is_whole

Decode = Callable[[Any, Any], Any]
"""Takes an encoded image and its name, both texts of TensorFlow; returns bytes of shape (height, width, channels)."""
_PNG, _JPEG = b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff"
_PNG_END = b"IEND\xaeB`\x82"
_TAIL = 1024
"""Bytes at the end of a JPEG file in which its end mark must be: some programs write more after it."""
_REFUSAL = ": is no whole PNG or JPEG image: replace it, or remove it"
_REFUSED = re.compile(r"\[(?:b')?([^\[\]]+" + re.escape(_REFUSAL) + ")")


def sides_of(image_size: int | Sequence[int]) -> tuple[int, int]:
    """Return height and width.

    Raises
    ------
    OptionError
        If they are none.
    """
    sides = (image_size, image_size) if isinstance(image_size, int) else tuple(image_size)
    if len(sides) != 2 or not all(is_whole(side, 1) for side in sides):
        raise OptionError(f"image_size: {image_size!r} – a positive number of pixels, or [height, width]")
    return sides[0], sides[1]


def decoder(image_size: int | Sequence[int], channels: int, *, is_cropped: bool) -> Decode:
    """Return what decodes a PNG or JPEG image, and scales it.

    Parameters
    ----------
    image_size : int or [height, width]
        What each image is scaled to.
    channels : int
        1 or 3.
    is_cropped : bool
        Keep the proportions, and cut off what is too much at the longer sides.

    Raises
    ------
    OptionError
        If there are no such images.
    """
    height, width = sides_of(image_size)
    if channels not in {1, 3} or isinstance(channels, bool):
        raise OptionError(f"channels: {channels!r} – 1 or 3")

    def decode(encoded: Any, name: Any) -> Any:
        refusal = tf.strings.join([name, _REFUSAL])
        with tf.control_dependencies([tf.debugging.Assert(_is_whole(encoded), [refusal])]):
            whole = tf.identity(encoded)
        image = tf.io.decode_image(whole, channels=channels, expand_animations=False)
        scaled = tf.cond(
            tf.reduce_all(tf.equal(tf.shape(image)[:2], (height, width))),
            lambda: image,
            lambda: _scaled(image, height, width, is_cropped=is_cropped),
        )
        return tf.ensure_shape(scaled, (height, width, channels))

    return decode


def refusal_in(error: BaseException) -> str:
    """Return which image an error of TensorFlow is about, and what to do; empty if it is about none. Pure."""
    found = _REFUSED.search(str(error))
    return found[1] if found else ""


def _is_whole(encoded: Any) -> Any:
    """Return whether bytes begin and end as a PNG or JPEG file does. Most cut files do not; decoding finds the rest."""
    length = tf.strings.length(encoded)
    end = tf.strings.substr(encoded, tf.maximum(length - len(_PNG_END), 0), len(_PNG_END))
    is_png = (tf.strings.substr(encoded, 0, len(_PNG)) == _PNG) & (end == _PNG_END)
    tail = tf.io.decode_raw(tf.strings.substr(encoded, tf.maximum(length - _TAIL, 0), _TAIL), tf.uint8)
    is_marked = tf.reduce_any((tail[:-1] == 0xFF) & (tail[1:] == 0xD9))
    return is_png | ((tf.strings.substr(encoded, 0, len(_JPEG)) == _JPEG) & is_marked)


def _scaled(image: Any, height: int, width: int, *, is_cropped: bool) -> Any:
    if is_cropped:
        sides = tf.cast(tf.shape(image)[:2], tf.float64)
        scale = tf.reduce_max(tf.constant([height, width], tf.float64) / sides)
        wanted = tf.maximum(tf.cast(tf.math.round(sides * scale), tf.int32), (height, width))
        image = tf.image.resize(image, wanted)
        top, left = (wanted[0] - height) // 2, (wanted[1] - width) // 2
        image = image[top : top + height, left : left + width]
    else:
        image = tf.image.resize(image, (height, width))
    return tf.cast(tf.clip_by_value(tf.math.round(image), 0, 255), tf.uint8)
