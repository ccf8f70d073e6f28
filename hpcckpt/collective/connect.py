"""Which communicator a caller gets for what it passes as ``comm``."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

from hpcckpt.collective.communicator import (
    Communicator,
    SerialCommunicator,
    launch_problem,
    launched,
    launched_size,
)
from hpcckpt.collective.deadlines import Patience
from hpcckpt.collective.uncaught import exit_with_code_of_error
from hpcckpt.errors import MpiError


def default_communicator(patience: Patience | None = None) -> Communicator:
    """Return the group that ``comm=None`` means: MPI.COMM_WORLD under a launcher, else one rank. Collective.

    Raises
    ------
    MpiError
        If a launcher started several ranks and mpi4py is not installed or sees another number of them, or if it is
        not clear which launcher started them.
    """
    problem = launch_problem()
    if problem:
        raise MpiError(problem)
    rank, n_ranks = launched()
    if n_ranks is None and rank is None:
        return _alone()
    try:
        from hpcckpt.collective.mpi import world  # starts MPI
    except ImportError as error:
        if n_ranks == 1:
            return _alone()
        raise MpiError(
            f"a launcher started {n_ranks or 'several'} ranks, but mpi4py cannot be loaded ({error}); "
            "pip install 'hpcckpt[mpi]', or pass comm="
        ) from error
    return world(patience)


def _alone() -> Communicator:
    exit_with_code_of_error()
    return SerialCommunicator()


def as_communicator(comm: Any, patience: Patience | None = None) -> Communicator:
    """Return the `Communicator` for what a user passes as ``comm``. Collective.

    Parameters
    ----------
    comm : None, Communicator, or mpi4py communicator
        ``None`` means the default; an mpi4py communicator is duplicated.
    patience : Patience, optional
        How long it waits; by default as long as `comm`, if that is a `Communicator`.

    Raises
    ------
    TypeError
        If it is something else.
    """
    if comm is None:
        return default_communicator(patience)
    if isinstance(comm, Communicator):
        made = comm.duplicate()
        if patience is not None:
            made.patience = made.patience.within(patience.peer_timeout_s)
        return made
    if type(comm).__module__.partition(".")[0] == "mpi4py":
        from hpcckpt.collective.mpi import MpiCommunicator  # starts MPI

        if not comm:
            raise TypeError(
                "comm is MPI.COMM_NULL: this rank is in none of the groups, and only ranks with a communicator make "
                "a Checkpointer"
            )
        if comm.Is_inter():
            raise TypeError("comm is an intercommunicator: pass comm.Merge(), or each group's own communicator")
        return MpiCommunicator(comm, patience)
    raise TypeError(f"comm must be None or an mpi4py communicator, not {type(comm).__qualname__}")


# -- processes of torchrun ------------------------------------------------------------------------


def refuse_torchrun(environ: Mapping[str, str] = os.environ) -> None:
    """Raise if PyTorch knows several processes and MPI does not: each would save as if it were the only one.

    Raises
    ------
    MpiError
        Naming what says so, and the command.
    """
    n_ranks, source = _processes_of_torch(environ)
    if n_ranks > 1 and launched_size() != n_ranks:
        raise MpiError(
            f"{source} says that there are {n_ranks} processes, but MPI did not start them. torchrun is not supported "
            f"yet: start the program with 'mpirun -n {n_ranks} python ...', or pass comm=MPI.COMM_SELF if this process "
            "saves alone"
        )


def _processes_of_torch(environ: Mapping[str, str]) -> tuple[int, str]:
    """Return how many processes PyTorch knows, and what says so; 0 if none does."""
    torch = sys.modules.get("torch")
    distributed = getattr(torch, "distributed", None)
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_world_size(), "torch.distributed"
    size = environ.get("WORLD_SIZE", "")
    is_of_torch = "TORCHELASTIC_RUN_ID" in environ or {"RANK", "MASTER_ADDR"} <= environ.keys()
    is_count = size.isascii() and size.isdecimal() and len(size) < 10
    return (int(size) if is_of_torch and is_count else 0), f"WORLD_SIZE={size} (torchrun)"
