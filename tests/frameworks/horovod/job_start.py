"""Horovod, started by us: twice, for a program may not know whether it runs; and ended while MPI is still needed."""

from __future__ import annotations

import sys
from pathlib import Path

import horovod.tensorflow as hvd
import numpy as np

import hpcckpt as hc
from tests.support.horovod_jobs import tell

PLACE = Path(sys.argv[1])


def main() -> None:
    """Run."""
    comm, again = hc.horovod.start(), hc.horovod.start()
    said = {"horovod's": (hvd.rank(), hvd.size()), "ours": (comm.rank, comm.size), "again": (again.rank, again.size)}
    with hc.Checkpointer(PLACE / "run", comm=comm) as ckpt:
        ckpt.save(1, {"rank": hc.PerRank(np.array([comm.rank]))})
    hvd.shutdown()
    from mpi4py import MPI

    is_over = MPI.Is_finalized()
    total = None if is_over else MPI.COMM_WORLD.allreduce(said["ours"][0])
    tell(said["horovod's"][0], {**said, "is over": is_over, "total": total})


main()
