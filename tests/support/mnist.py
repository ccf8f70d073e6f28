"""A file like ``mnist.npz``, of random images."""

from __future__ import annotations

from pathlib import Path

import numpy as np


def random_mnist(path: Path, n_images: int = 400) -> Path:
    """Write the file, and return its path."""
    rng = np.random.default_rng(1)
    arrays = {}
    for part in ("train", "test"):
        arrays[f"x_{part}"] = rng.integers(0, 256, (n_images, 28, 28), np.uint8)
        arrays[f"y_{part}"] = rng.integers(0, 10, n_images, np.uint8)
    np.savez(path, **arrays)
    return path
