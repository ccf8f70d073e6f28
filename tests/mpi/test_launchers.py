"""Launchers as they are: a rank knows which it is, and where it cannot know, nothing is written."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.mpi import launch as mpi_launch
from tests.support.mpi.launch import PROGRAMS, Finished, mpirun, run_python

JOB = str(PROGRAMS / "job_launch.py")
BATCH = ("SLURM_JOB_ID=7", "SLURM_PROCID=0", "SLURM_LOCALID=0", "SLURM_NODEID=0", "SLURM_NTASKS=4", "SLURM_NPROCS=4")
STEP = (*BATCH, "SLURM_STEP_ID=0", "SLURM_STEP_NUM_TASKS=4", "SLURM_STEP_NUM_NODES=1", "SLURM_STEP_TASKS_PER_NODE=4")
DAEMON = (*BATCH, "SLURM_STEP_ID=0", "SLURM_STEP_NUM_TASKS=1", "SLURM_STEP_NUM_NODES=1", "SLURM_STEP_TASKS_PER_NODE=1")


def test_a_launcher_that_locks_up_is_killed_when_its_job_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mpi_launch, "LAUNCHER_S", 0.1)
    assert mpi_launch._run(["/bin/sh", "-c", "exec sleep 1000"], {}, 100, is_launcher=True).code == -9
    ended = mpi_launch._run(["/bin/sh", "-c", "sleep 1; echo whole"], {}, 100, is_launcher=True)
    assert (ended.code, ended.out) == (0, "whole\n")


@pytest.mark.parametrize("around", [(), BATCH, DAEMON], ids=["nothing", "an allocation", "a daemon's step"])
def test_what_mpirun_says_is_what_mpi_says(tmp_path: Path, around: tuple[str, ...]) -> None:
    ended = mpirun(2, JOB, str(tmp_path / "run"), *around)
    assert ended.code == 0, ended.err
    said = sorted(ended.lines("rank"), key=lambda line: line["mpi"])
    assert said == [{"before": [rank, 2], "after": [rank, 2], "mpi": [rank, 2]} for rank in (0, 1)]


def test_what_a_launcher_leaves_open_mpi_fills_in(tmp_path: Path) -> None:
    ended = mpirun(2, JOB, str(tmp_path / "run"), "OMPI_COMM_WORLD_SIZE=", "OMPI_COMM_WORLD_RANK=")
    assert ended.code == 0, ended.err
    said = sorted(ended.lines("rank"), key=lambda line: line["mpi"])
    assert said == [{"before": [rank, None], "after": [rank, 2], "mpi": [rank, 2]} for rank in (0, 1)]


def test_a_job_within_each_task_of_another_is_refused_on_every_rank(tmp_path: Path) -> None:
    ended = mpirun(2, JOB, str(tmp_path / "run"), *STEP)
    assert ended.code != 0
    assert "OMPI_COMM_WORLD_SIZE=2" in ended.err
    assert "SLURM_STEP_NUM_TASKS=4" in ended.err
    assert not (tmp_path / "run").exists()


def test_the_user_s_word_ends_the_dispute(tmp_path: Path) -> None:
    ended = mpirun(2, JOB, str(tmp_path / "run"), *STEP, "HPCCKPT_LAUNCHER=openmpi")
    assert ended.code == 0, ended.err
    assert (tmp_path / "run" / "step-0000000001").is_dir()


def test_none_of_many_processes_that_mpi_did_not_connect_writes(tmp_path: Path) -> None:
    """As under ``srun --mpi=none`` with a library that starts such a process as one of a job."""

    def task(rank: int) -> Finished:
        own = {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)}
        step = dict(variable.split("=") for variable in STEP) | own
        return run_python(JOB, str(tmp_path / "run"), *(f"{name}={value}" for name, value in step.items()))

    with ThreadPoolExecutor(4) as pool:
        ended = list(pool.map(task, range(4)))
    assert [each.code != 0 for each in ended] == [True] * 4
    for rank, each in enumerate(ended):
        assert f"rank {rank} (SLURM_PROCID) of 4 (SLURM_STEP_NUM_TASKS)" in each.err
        assert "sees 1" in each.err
    assert not (tmp_path / "run").exists()
