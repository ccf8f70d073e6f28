"""Save on 3 ranks by each driver of `hdf5`, restore on 1, 2 and 5: ``mpirun -n 5 job_hdf5.py DIRECTORY``.

What came of it goes to ``DIRECTORY/found.json``: for each case and number of ranks, what differed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any
from unittest import mock

from mpi4py import MPI

import hpcckpt as hc
from hpcckpt.backends.hdf5 import transfers
from tests.support.mpi import hdf5_states
from tests.support.mpi.states import differences

WORLD = MPI.COMM_WORLD
READERS = (1, 2, 5)
TINY_TRANSFERS = 1000
"""Bytes: so every tensor of some size takes many transfers, and ranks need different numbers of them."""


def on_first_ranks(count: int, body: Any) -> Any:
    """Call `body` with a communicator of the first ranks; return what it returned on root, on every rank."""
    comm = WORLD.Split(0 if WORLD.rank < count else MPI.UNDEFINED, WORLD.rank)
    found = None
    if comm != MPI.COMM_NULL:
        found = body(comm)
        comm.Free()
    return WORLD.bcast(found)


def save(directory: Path, case: hdf5_states.Case) -> None:
    """Save three steps, of which the last writes over the first where the driver recycles."""

    def body(comm: MPI.Intracomm) -> None:
        options: dict[str, Any] = {"backend": "hdf5", "backend_options": case.options, "max_to_keep": 1}
        with hc.Checkpointer(directory, comm=comm, **options) as ckpt:
            for step in (1, 2, 3):
                ckpt.save(step, case.state(comm, step)).result()

    limit = TINY_TRANSFERS if case.is_split else transfers.MAX_TRANSFER_BYTES
    with mock.patch.object(transfers, "MAX_TRANSFER_BYTES", limit):
        on_first_ranks(hdf5_states.SAVED_ON, body)


def restore(directory: Path, case: hdf5_states.Case, n_ranks: int) -> list[str]:
    """Restore on the first ranks, once cut like the saved state and once along other axes; return what differs."""

    def body(comm: MPI.Intracomm) -> list[str]:
        found: list[str] = []
        with hc.Checkpointer(directory, comm=comm) as ckpt:
            for turn in (0, 1):
                state = case.state(comm, 0, turn)
                assert ckpt.restore(state).step == 3
                found += differences(state, case.state(comm, 3, turn))
        return [name for names in comm.allgather(found) for name in names]

    return on_first_ranks(n_ranks, body)


def main() -> None:
    """Run."""
    directory, found = Path(sys.argv[1]), {}
    for case in hdf5_states.CASES:
        save(directory / case.name, case)
        found[case.name] = {n_ranks: restore(directory / case.name, case, n_ranks) for n_ranks in READERS}
    if WORLD.rank == 0:
        (directory / "found.json").write_text(json.dumps(found), encoding="utf-8")


main()
