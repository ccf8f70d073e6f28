"""Under mpirun, srun or aprun: rank 0 acts, and every rank exits with its code.

The code travels over MPI where mpi4py is installed and the launcher really connected the ranks;
else the other ranks exit with 0 at once, and the launcher, which reports the worst code, still
reports rank 0's.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from hpcckpt.cli.exit_codes import ExitCode
from hpcckpt.collective.communicator import launched_rank, launched_size

if TYPE_CHECKING:
    from hpcckpt.collective.communicator import Communicator

# Under `srun --mpi=none` only SLURM_PROCID is set, and some MPI libraries then abort the process in MPI_Init.
_WIRED = (
    "OMPI_COMM_WORLD_RANK",
    "PMIX_RANK",
    "PMI_RANK",
    "PMI_FD",
    "PMI_PORT",
    "PMI_CONTROL_PORT",
    "PALS_RANKID",
    "ALPS_APP_PE",
)


def is_wired(environ: Mapping[str, str]) -> bool:
    """Say whether the launcher set up what MPI needs to connect the ranks."""
    return any(name in environ for name in _WIRED)


def run_on_root(act: Callable[[], int]) -> int:
    """Run `act` on rank 0 only and return its exit code on every rank. Collective."""
    rank = launched_rank()
    if rank is None or launched_size() == 1:
        return act()
    comm = connect()
    if comm is None:
        return act() if rank == 0 else 0
    return share(comm, act)


def share(comm: Communicator, act: Callable[[], int]) -> int:
    """Run `act` on root and return its exit code on every rank. Collective."""
    try:
        return comm.bcast(act() if comm.is_root else None)
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED


def connect() -> Communicator | None:
    """Return the launcher's ranks, or ``None`` where MPI is absent or belongs to another launcher. Collective."""
    if not is_wired(os.environ) or importlib.util.find_spec("mpi4py") is None:
        return None
    from hpcckpt.collective.communicator import default_communicator

    try:
        comm = default_communicator()
    except Exception:  # noqa: BLE001 - a verb that needs no MPI must not fail for want of it
        return None
    return comm if comm.size > 1 else None
