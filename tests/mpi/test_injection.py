"""Fault injection springs where it should, and nowhere else."""

from __future__ import annotations

import errno
from pathlib import Path

import numpy as np
import pytest

import hpcckpt as hc
from hpcckpt.collective.communicator import Communicator
from hpcckpt.core import failpoints
from hpcckpt.errors import CollectiveError, NoSpaceError
from hpcckpt.testing.faults import Fault, InjectedError, armed, process_ids
from hpcckpt.testing.ranks import run_ranks


def save(directory: Path, comm: Communicator, step: int) -> None:
    with hc.Checkpointer(directory, comm=comm) as ckpt:
        ckpt.save(step, {"w": np.ones(30)})


def test_an_unknown_phase_is_refused() -> None:
    with pytest.raises(ValueError, match="no phase '2-wrote'; there are 0-plan, "):
        Fault("2-wrote")


def test_an_error_springs_on_its_rank_only(tmp_path: Path) -> None:
    def body(comm: Communicator) -> None:
        with pytest.raises(CollectiveError, match=r"\[rank 1\] InjectedError: injected at phase 2-write of rank 1"):
            save(tmp_path, comm, 1)

    with armed(Fault("2-write", "raise", rank=1)):
        run_ranks(3, body)
    run_ranks(3, lambda comm: save(tmp_path, comm, 1))


def test_an_error_of_ones_own_and_a_later_occurrence(tmp_path: Path) -> None:
    full = OSError(errno.ENOSPC, "full")

    def body(comm: Communicator) -> None:
        save(tmp_path, comm, 1)
        with pytest.raises(NoSpaceError):
            save(tmp_path, comm, 2)
        save(tmp_path, comm, 3)

    with armed(Fault("4-manifest", "raise", occurrence=2, error=full)):
        run_ranks(2, body)


def test_faults_are_gone_after_the_block() -> None:
    with pytest.raises(InjectedError), armed(Fault("0-plan", "raise")):
        failpoints.reached("0-plan", 0)
    failpoints.reached("0-plan", 0)


def test_process_ids_have_one_for_each_rank() -> None:
    assert len(run_ranks(3, process_ids)[0]) == 3
