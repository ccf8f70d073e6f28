"""A rank that raises outside of any collective call, while the others are in one."""

from __future__ import annotations

import sys

import numpy as np
from mpi4py import MPI

import hpcckpt as hc


def main() -> None:
    """Run: the last rank fails between two saves."""
    world = MPI.COMM_WORLD
    with hc.Checkpointer(sys.argv[1]) as ckpt:
        ckpt.save(1, {"w": np.zeros(10)}).result()
        if world.rank == world.size - 1:
            raise ValueError("the program's own mistake")
        ckpt.save(2, {"w": np.ones(10)})


main()
