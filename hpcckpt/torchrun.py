"""Processes that torchrun or ``torch.multiprocessing`` started: not supported, and refused with the right command."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from hpcckpt.collective.communicator import launched_size
from hpcckpt.errors import MpiError


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
