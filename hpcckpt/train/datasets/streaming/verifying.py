"""Which images cannot be decoded: before a training, or for the message after it failed."""

from __future__ import annotations

import os
from collections.abc import Sequence

import tensorflow as tf


def unreadable(paths: Sequence[bytes]) -> list[str]:
    """Return those of some files that are no images, in their order. Independent."""
    return [os.fsdecode(path) for path in paths if not _is_readable(path)]


def _is_readable(path: bytes) -> bool:
    try:
        tf.io.decode_image(tf.io.read_file(path), expand_animations=False)
    except tf.errors.OpError:
        return False
    return True
