"""Jobs that are killed during a save, and checks of what they leave."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hpcckpt as hc
from hpcckpt.collective.communicator import Communicator
from hpcckpt.core.failpoints import PHASES
from hpcckpt.format import layout
from hpcckpt.rundir.retention import leftovers
from hpcckpt.testing.ranks import run_ranks
from tests.support.mpi.launch import run_program
from tests.support.mpi.states import differences, state_of

ROOT_ONLY = {p for p in PHASES if p[0] in "14568"}


def kill_at(directory: Path, n_ranks: int, phase: str, victims: Sequence[int], **request: Any) -> None:
    """Run a job that saves and is killed at `phase` of its last save."""
    springs = 0 if phase in ROOT_ONLY else victims[-1]
    fault = {"phase": phase, "rank": springs, "victims": list(victims)}
    asked = {"directory": str(directory), "saves": [[1, 1, False], [2, 2, False]], "fault": fault, **request}
    ended = run_program(n_ranks, "job_faults", asked)
    assert ended.code != 0, ended
    assert "survived" not in ended.out
    assert "Traceback" not in ended.err, ended.err


def check_goes_on(directory: Path, n_ranks: int, seeds: dict[int, int]) -> None:
    """Restore the newest step on `n_ranks` ranks and save the next; `seeds` has the steps it may be, and the states."""
    assert (directory / layout.LOCK).exists(), "the killed job was to leave its lock"

    def body(comm: Communicator) -> int:
        state = state_of(comm, 0)
        with hc.Checkpointer(directory, comm=comm, max_to_keep=None) as ckpt:
            step = ckpt.restore(state).step
            assert not differences(state, state_of(comm, seeds[step]))
            ckpt.save(step + 1, state_of(comm, 99))
        return step

    step = run_ranks(n_ranks, body)[0]
    check_is_tidy(directory)
    check_holds(directory, n_ranks + 1, step + 1, 99)


def check_holds(directory: Path, n_ranks: int, step: int, seed: int) -> None:
    """Check that the newest step is `step` and comes back bit-exact."""

    def body(comm: Communicator) -> None:
        state = state_of(comm, 0)
        with hc.Checkpointer(directory, comm=comm) as ckpt:
            assert ckpt.restore(state).step == step
        assert not differences(state, state_of(comm, seed))

    run_ranks(n_ranks, body)


def check_is_tidy(directory: Path) -> None:
    """Check that nothing is left of the killed job, its lock included."""
    assert leftovers(directory) == []
    hidden = sorted(name for name in os.listdir(directory) if name.startswith(".") and name != layout.PINS)
    assert hidden == []
