"""Processes that torchrun started are refused, with the command that works."""

from __future__ import annotations

import subprocess
import sys

import pytest

import hpcckpt as hc
from hpcckpt.collective.connect import refuse_torchrun
from hpcckpt.errors import MpiError

TORCHRUN = {"TORCHELASTIC_RUN_ID": "none", "RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost"}


@pytest.mark.parametrize("without", [None, "TORCHELASTIC_RUN_ID", "MASTER_ADDR"])
def test_several_processes_of_torchrun_are_refused_with_mpirun_named(run_dir, monkeypatch, without):
    for name, value in TORCHRUN.items():
        if name != without:
            monkeypatch.setenv(name, value)
    with pytest.raises(MpiError, match="mpirun -n 2"):
        hc.Checkpointer(run_dir)
    assert not run_dir.exists()


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {**TORCHRUN, "WORLD_SIZE": "1", "RANK": "0"},
        {"WORLD_SIZE": "2"},
        {**TORCHRUN, "WORLD_SIZE": "two"},
    ],
)
def test_one_process_of_torchrun_is_accepted(environ):
    refuse_torchrun(environ)


def test_ranks_of_mpirun_may_use_torch_distributed(monkeypatch):
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "1")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    refuse_torchrun(TORCHRUN)


def test_processes_of_an_initialized_process_group_are_refused(monkeypatch):
    import torch

    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 4)
    with pytest.raises(MpiError, match="mpirun -n 4"):
        refuse_torchrun({})


def test_a_process_that_passes_its_communicator_is_not_refused(run_dir, monkeypatch):
    from hpcckpt.collective.communicator import SerialCommunicator

    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    with hc.Checkpointer(run_dir, comm=SerialCommunicator()) as ckpt:
        ckpt.save(1, {"a": 1})


@pytest.mark.slow
def test_torchrun_ends_with_one_message_that_names_mpirun(tmp_path):
    program = tmp_path / "train.py"
    program.write_text(
        f"import hpcckpt as hc\nhc.torch.save({str(tmp_path / 'run')!r}, 1, epoch=1, rng=hc.PerRank(1))\n"
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode != 0
    assert "mpirun -n 2" in done.stderr
    assert not (tmp_path / "run").exists()
