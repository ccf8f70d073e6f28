"""Writes the golden checkpoints of `hdf5`: mpirun -n 3 python tests/format/make_golden_hdf5.py DIRECTORY.

One for each driver, and one that is packed. Run it once when the format changes, with a new directory, and commit what
it writes; never write over an old one.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

import hpcckpt as hc
from tests.format import make_golden

CASES: dict[str, dict[str, Any]] = {
    "direct": {"driver": "direct"},
    "per-rank": {"driver": "per-rank"},
    "mpio": {"driver": "mpio"},
    "mpio-gzip": {"driver": "mpio", "compression": "gzip", "chunks": 8192},
}


def packed() -> np.ndarray[Any, Any]:
    """Return a tensor that is large enough to have chunks, and packs well."""
    return np.arange(300 * 70, dtype=np.int32).reshape(300, 70) // 500


def state_of(rank: int, n_ranks: int) -> dict[str, Any]:
    """Return the state of one rank."""
    return {**make_golden.state_of(rank, n_ranks), "packed": packed(), "much": hc.PerRank(many(rank))}


def many(rank: int) -> np.ndarray[Any, Any]:
    """Return a rank's own value that has its own place."""
    return np.full((rank + 1) * 25_000, rank, np.uint8)


def save(directory: Path, comm: Any, case: str) -> None:
    """Save the golden step into a run directory. Collective."""
    with hc.Checkpointer(directory, comm=comm, backend="hdf5", backend_options=CASES[case]) as ckpt:
        state = state_of(comm.rank, comm.size)
        ckpt.save(make_golden.STEP, state, metrics=make_golden.METRICS, objects=make_golden.OBJECTS).result()


def main() -> None:
    """Run."""
    from mpi4py import MPI

    for case in CASES:
        save(Path(sys.argv[1]) / case, MPI.COMM_WORLD, case)


if __name__ == "__main__":
    main()
