"""Save on N ranks and restore on M, for all pairs up to the job's size: ``job_pairs.py DIRECTORY``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from mpi4py import MPI

import hpcckpt as hc
from tests.support.mpi.states import differences, state_of

WORLD = MPI.COMM_WORLD


def first_ranks(count: int) -> Any:
    """Return a communicator of the first `count` ranks; COMM_NULL on the others."""
    return WORLD.Split(0 if WORLD.rank < count else MPI.UNDEFINED, WORLD.rank)


def save(directory: Path, n_ranks: int) -> None:
    """Save on the first ranks."""
    comm = first_ranks(n_ranks)
    if comm != MPI.COMM_NULL:
        with hc.Checkpointer(directory, comm=comm) as ckpt:
            ckpt.save(n_ranks, state_of(comm, n_ranks))
        comm.Free()
    WORLD.Barrier()


def restore(directory: Path, saved_on: int, n_ranks: int) -> list[str]:
    """Restore on the first ranks, once split like the saved state and once along other axes; return what differs."""
    comm = first_ranks(n_ranks)
    found: list[str] = []
    if comm != MPI.COMM_NULL:
        with hc.Checkpointer(directory, comm=comm) as ckpt:
            for turn in (0, 1):
                state = state_of(comm, 0, turn)
                restored = ckpt.restore(state)
                found += differences(state, state_of(comm, saved_on, turn))
                found += [] if (restored.step, restored.n_ranks) == (saved_on, saved_on) else [f"{restored}"]
        comm.Free()
    return [name for names in WORLD.allgather(found) for name in names]


def main() -> None:
    """Run."""
    counts = range(1, WORLD.size + 1)
    for saved_on in counts:
        directory = Path(sys.argv[1], f"on-{saved_on}")
        save(directory, saved_on)
        for n_ranks in counts:
            found = restore(directory, saved_on, n_ranks)
            if WORLD.rank == 0:
                print("pair", json.dumps([saved_on, n_ranks, found]), flush=True)


main()
