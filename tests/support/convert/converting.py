"""What the tests of conversions share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import hpcckpt as hc


def save_plain(directory: Path) -> Path:
    """Save a small state without any framework."""
    import ml_dtypes

    kernel = np.arange(12, dtype=np.float32).reshape(3, 4) / 7
    state = {
        "model": {"dense": {"kernel": kernel, "bias": hc.RootOnly(np.zeros(4, np.float32))}},
        "optimizer": {"iteration": np.int64(7), "m": {"dense": {"kernel": -kernel}}},
        "half": np.arange(5).astype(ml_dtypes.bfloat16),
        "rows": hc.Sharded(np.arange(6.0).reshape(3, 2), (3, 2), (0, 0)),
        "seed": hc.PerRank(np.array([3, 4])),
        "empty": np.empty((0, 2), np.float32),
        "epoch": 2,
    }
    with hc.Checkpointer(directory, async_save=False) as ckpt:
        ckpt.save(7, state, metrics={"loss": 0.25, "acc": float("nan")}, objects={"batch": 3})
    return directory


def assert_same(left: dict[str, Any], right: dict[str, Any]) -> None:
    """Assert that two sets of tensors are equal: names, dtypes, shapes, bits."""
    assert sorted(left) == sorted(right)
    for name, value in left.items():
        assert (value.dtype, value.shape) == (right[name].dtype, right[name].shape), name
        assert value.tobytes() == right[name].tobytes(), name
