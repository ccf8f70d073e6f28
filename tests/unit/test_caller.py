"""What the caller has set does not reach the tests."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

import pytest

from tests.support import caller


def test_settings_of_the_caller_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    set_by_caller = {
        "SLURM_JOB_ID": "1", "PBS_JOBID": "1", "PMIX_RANK": "1", "HPCCKPT_SCRATCH": "/", "TF_DETERMINISTIC_OPS": "0",
        "NO_COLOR": "1", "PYTHONUNBUFFERED": "1",
    }  # fmt: skip
    for name, value in {**set_by_caller, "HPCCKPT_MPIRUN": "mpirun", "OMPI_MCA_x": "1"}.items():
        monkeypatch.setenv(name, value)
    caller.forget(is_under_mpi=False)
    assert set_by_caller.keys() & os.environ.keys() == set()
    assert {"HPCCKPT_MPIRUN", "OMPI_MCA_x"} <= os.environ.keys()


def test_a_rank_keeps_what_its_launcher_has_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_PROCID", "PMIX_RANK", "OMPI_COMM_WORLD_RANK"):
        monkeypatch.setenv(name, "1")
    caller.forget(is_under_mpi=True)
    assert {"SLURM_PROCID", "PMIX_RANK", "OMPI_COMM_WORLD_RANK"} <= os.environ.keys()


def test_programs_are_no_ranks_of_an_mpi_that_a_test_has_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMPI_MCA_ours", "1")
    for name in (b"PMIX_RANK", b"OMPI_MCA_ess"):  # as MPI_Init does where no launcher has started it
        ctypes.CDLL(None).setenv(name, b"0", 1)
    program = "import os; print(sorted(os.environ.keys() & {'PMIX_RANK', 'OMPI_MCA_ess', 'OMPI_MCA_ours'}))"
    command = [sys.executable, "-c", program]
    assert subprocess.check_output(command, text=True) == "['OMPI_MCA_ess', 'OMPI_MCA_ours', 'PMIX_RANK']\n"
    caller.forget_launch_by_libraries()
    assert subprocess.check_output(command, text=True) == "['OMPI_MCA_ours']\n"
