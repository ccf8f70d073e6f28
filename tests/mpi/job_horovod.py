"""Horovod and mpi4py in one process: both reduce, and a checkpoint goes to disk and back between them."""

from __future__ import annotations

import json
import sys

import horovod.tensorflow as hvd
import numpy as np
from mpi4py import MPI

import hpcckpt as hc
from hpcckpt.collective.mpi import mapped_mpi_libraries


def main() -> None:
    """Run."""
    hvd.init()
    world = MPI.COMM_WORLD
    total = float(np.asarray(hvd.allreduce(np.float64(world.rank + 1), op=hvd.Sum, name="total")))
    state = {"total": np.full(4, total)}
    with hc.Checkpointer(sys.argv[1], comm=world) as ckpt:
        ckpt.save(1, state)
        back = {"total": np.zeros(4)}
        ckpt.restore(back)
    hvd.allreduce(np.float64(0), name="after")
    said = {"rank": hvd.rank(), "size": hvd.size(), "sum": total, "restored": float(back["total"][3])}
    for found in world.gather({**said, "libraries": mapped_mpi_libraries()}) or []:
        print("horovod", json.dumps(found), flush=True)
    hvd.shutdown()


main()
