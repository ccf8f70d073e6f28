"""The example, killed by SIGKILL after some step on one rank: ``job_exact.py KILL_AT ARGUMENTS...``; 0 never."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[2] / "examples")]

import torch_resume
from mpi4py import MPI

KILL_AT = int(sys.argv[1])


def on_step(step: int) -> None:
    """Kill the last rank."""
    if step == KILL_AT and MPI.COMM_WORLD.rank == MPI.COMM_WORLD.size - 1:
        os.kill(os.getpid(), signal.SIGKILL)


torch_resume.main(sys.argv[2:], on_step)
