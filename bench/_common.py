"""What the benchmarks share: the command line, the state, the clock."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI

WORLD = MPI.COMM_WORLD


def parse(description: str) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--directory", default=".", help="where to write; on the disk that counts, not in memory")
    parser.add_argument("--mib", type=int, default=1024, help="size of the state")
    parser.add_argument("--tensors", type=int, default=200, help="number of tensors")
    parser.add_argument("--repeat", type=int, default=9, help="repetitions")
    parser.add_argument("--threads", type=int, default=0, help="native threads per rank; 0 chooses")
    parser.add_argument("--drift", type=float, default=0.15, help="how far the memcpy figures of a repetition may part")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--plot", metavar="PNG", help="draw the repetitions, where matplotlib is there")
    return parser.parse_args()


def make_state(n_tensors: int, nbytes: int) -> dict[str, np.ndarray]:
    """Return replicated tensors, all pages touched."""
    each = nbytes // n_tensors // 4
    return {f"layer{n:03d}/kernel": np.full(each, n, np.float32) for n in range(n_tensors)}


def timed(fn: Callable[[], Any]) -> float:
    """Return the seconds from the first rank's start to the last rank's end."""
    WORLD.Barrier()
    began = time.perf_counter()
    fn()
    WORLD.Barrier()
    return WORLD.allreduce(time.perf_counter() - began, op=MPI.MAX)


def settle(fn: Callable[[], Any]) -> None:
    """Do something outside the clock, on root, and let the disk come to rest."""
    WORLD.Barrier()
    if WORLD.rank == 0:
        fn()
        os.sync()
    WORLD.Barrier()


def slowest_copy(copy_rate: Callable[[], float]) -> float:
    """Return the slowest rank's memcpy rate, all ranks copying at once. Collective."""
    WORLD.Barrier()
    return WORLD.allreduce(copy_rate(), op=MPI.MIN)
