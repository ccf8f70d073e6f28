"""Tests of what configurations are made of: data sets, models, losses. On Keras 2.15 and Keras 3."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.support import frameworks

if not frameworks.import_tensorflow():
    collect_ignore_glob = ["test_*.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is here: needs TensorFlow, runs on both stacks."""
    frameworks.mark(items, Path(__file__).parent, "tf", "stack_b")


@pytest.fixture
def mnist_npz(tmp_path: Path) -> Path:
    """A small file in MNIST's format: 200 images to train with and 40 to validate with, each with its number in it."""
    path = tmp_path / "mnist.npz"
    arrays = {}
    for part, n, first in (("train", 200, 0), ("test", 40, 200)):
        pixels = np.zeros((n, 28, 28), np.uint8)
        pixels[:, 0, 0] = np.arange(first, first + n)
        arrays |= {f"x_{part}": pixels, f"y_{part}": np.arange(n, dtype=np.uint8) % 10}
    np.savez(path, **arrays)
    return path
