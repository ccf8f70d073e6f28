"""Prints what a process finds out about its launcher, and what MPI says, as ``rank {…}``.

slurmranks.py [--without-mpi]
"""

from __future__ import annotations

import json
import sys
from typing import Any

from hpcckpt.collective import launchers

ASPECTS = ("rank", "size", "local_rank", "local_size")


def main(*, is_with_mpi: bool) -> None:
    """Print a line."""
    reading = launchers.here()
    told = {"environment": facts(reading.launch), "disagreements": reading.disagreements}
    sys.stdout.write(f"rank {json.dumps({**told, 'mpi': by_mpi() if is_with_mpi else None})}\n")
    sys.stdout.flush()


def facts(launch: launchers.Launch | None) -> dict[str, Any] | None:
    """Return what the environment says."""
    if launch is None:
        return None
    told = {name: getattr(launch, name) for name in (*ASPECTS, "n_nodes")}
    return {name: None if fact is None else fact.value for name, fact in told.items()}


def by_mpi() -> dict[str, int]:
    """Return what MPI says. Collective."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    node = comm.Split_type(MPI.COMM_TYPE_SHARED)
    is_first = comm.allgather(node.rank == 0)
    return dict(zip((*ASPECTS, "n_nodes"), (comm.rank, comm.size, node.rank, node.size, sum(is_first)), strict=True))


if __name__ == "__main__":
    main(is_with_mpi="--without-mpi" not in sys.argv)
