"""Writes the golden checkpoint of the present format: python tests/format/make_golden.py DIRECTORY.

Run it once when the format changes, with a new directory, and commit what it writes; never write over an old one.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

import hpcckpt as hc
from hpcckpt.testing.ranks import run_ranks

N_RANKS = 3
STEP = 42
METRICS = {"loss": 0.25, "val_loss": float("nan")}
OBJECTS = {"epoch": 4, "best": float("inf"), "note": "ünï"}


def replicated() -> dict[str, Any]:
    """Return what is equal on all ranks."""
    return {
        "dense/kernel": np.arange(600, dtype=np.float32).reshape(20, 30) / 7,
        "dense/bias": np.array([np.nan, -0.0, np.inf, 1e-45], np.float32),
        "half": np.arange(5).astype(ml_dtypes.bfloat16),
        "flags": np.array([True, False, True]),
        "words": np.array(["a", "bcd"], "<U3"),
        "phase": np.array([1 + 2j, -3j], np.complex128),
        "scalar": np.float64(2.5),
        "empty": np.empty((0, 3), np.int16),
    }


def table() -> np.ndarray:
    """Return the tensor that is spread over the ranks by columns, unevenly."""
    return np.arange(7 * 10, dtype=np.int64).reshape(7, 10)


def state_of(rank: int, n_ranks: int) -> dict[str, Any]:
    """Return the state of one rank."""
    first, last = 10 * rank // n_ranks, 10 * (rank + 1) // n_ranks
    return {
        **replicated(),
        "table": hc.Sharded(table()[:, first:last].copy(), (7, 10), (0, first)),
        "rng": hc.PerRank({"seed": rank}),
        "own": hc.PerRank(np.full(rank + 1, rank, np.uint16)),
        "moving": hc.RootOnly(np.full(3, rank, np.float32)),
        "epoch": 4,
    }


def save(directory: Path) -> None:
    """Save the golden step into a run directory."""

    def body(comm: Any) -> None:
        with hc.Checkpointer(directory, comm=comm) as ckpt:
            ckpt.save(STEP, state_of(comm.rank, comm.size), metrics=METRICS, objects=OBJECTS)

    run_ranks(N_RANKS, body)


if __name__ == "__main__":
    save(Path(sys.argv[1]))
