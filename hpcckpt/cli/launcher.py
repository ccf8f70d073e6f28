"""Under mpirun, srun or aprun: rank 0 acts, and every rank exits with its code.

The code travels over MPI where mpi4py is installed and the launcher really connected the ranks;
else the other ranks exit with 0 at once, and the launcher, which reports the worst code, still
reports rank 0's.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from hpcckpt.cli.exit_codes import ExitCode
from hpcckpt.collective import launchers
from hpcckpt.collective.communicator import launch_problem, launched_rank, launched_size
from hpcckpt.collective.connect import default_communicator
from hpcckpt.collective.deadlines import SILENT
from hpcckpt.core.std_streams import write_message
from hpcckpt.errors import MpiError

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
    """Return True if the launcher has set the variables by which MPI connects the ranks."""
    return any(name in environ for name in _WIRED)


def run_on_root(act: Callable[[], int]) -> int:
    """Run `act` on rank 0 only and return its exit code on every rank. Collective.

    Raises
    ------
    MpiError
        If it is not clear which rank this is.
    """
    problem = launch_problem()
    if problem:
        raise MpiError(problem)
    rank = launched_rank()
    if rank is None or launched_size() == 1:
        return act()
    comm = connect()
    if comm is None:
        return act() if rank == 0 else _stand_back()
    return share(comm, act)


def _stand_back() -> int:
    """Leave it to rank 0; on a terminal, which launchers do not give to ranks, a person may wait for an answer."""
    if sys.stderr is not None and sys.stderr.isatty():
        launch = launchers.here().launch
        write_message(
            f"hpcckpt: this shell is {launch}, and only rank 0 acts; if that job is over: "
            f"{launchers.OVERRIDE}={launchers.NOBODY}"
        )
    return ExitCode.OK


def share(comm: Communicator, act: Callable[[], int]) -> int:
    """Run `act` on root and return its exit code on every rank. Collective."""
    comm.patience = SILENT
    try:
        return comm.bcast(act() if comm.is_root else None)
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED


def connect(*, is_doubtful: bool = False) -> Communicator | None:
    """Return the launcher's ranks, or ``None`` where MPI is absent or belongs to another launcher. Collective.

    Parameters
    ----------
    is_doubtful : bool, optional
        Whether to ask MPI also where the launchers' variables disagree: on all ranks, or only on some.
    """
    if not is_wired(os.environ) or importlib.util.find_spec("mpi4py") is None:
        return None
    try:
        if is_doubtful:
            from hpcckpt.collective.mpi import world  # starts MPI

            comm: Communicator = world()
        else:
            comm = default_communicator()
    except Exception:  # noqa: BLE001 - a verb that needs no MPI must not fail for want of it
        return None
    return comm if comm.size > 1 else None
