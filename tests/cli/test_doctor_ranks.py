"""``hpcckpt doctor`` under a real mpirun: it looks everywhere, and tells once."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.mpi import launch as mpi_launch

pytestmark = pytest.mark.skipif(shutil.which("mpirun") is None, reason="needs mpirun")


@pytest.fixture
def mpirun(environment: Callable[..., dict[str, str]]) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run the command line on two ranks, each in its own shell."""
    pytest.importorskip("mpi4py")

    def run(*words: object, before: str = "", under: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
        command = " ".join([sys.executable, "-m", "hpcckpt", *map(str, words)])
        return subprocess.run(
            [*under, "mpirun", "-n", "2", "sh", "-c", f"{before} exec {command}"],
            env={**mpi_launch.clean_environment(), **environment()},
            capture_output=True, text=True, timeout=240, check=False,
        )  # fmt: skip

    return run


def by_topic(done: subprocess.CompletedProcess[str]) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for finding in json.loads(done.stdout)["findings"]:
        found.setdefault(finding["topic"], []).append(finding)
    return found


def test_all_ranks_are_looked_at_and_one_tells(mpirun: Callable[..., Any], tmp_path: Path) -> None:
    done = mpirun("doctor", tmp_path / "run", "--quick", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    found = by_topic(done)
    assert all(each["ranks"] == [] for variants in found.values() for each in variants)
    assert found["started by"][0]["message"] == "Open MPI's mpirun: 2 ranks"
    assert found["hosts"][0]["message"].startswith("2 ranks on 1 host")
    assert found["shared"][0]["message"] == "all 2 ranks see what rank 0 writes"
    assert found["thread level"][0]["message"].startswith("MPI_THREAD_")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="needs setpriv")
def test_a_directory_that_may_not_be_entered_is_told_and_holds_no_rank_up(
    mpirun: Callable[..., Any], tmp_path: Path
) -> None:
    heeding_modes = ("setpriv", "--bounding-set=-dac_override,-dac_read_search") if os.getuid() == 0 else ()
    (tmp_path / "closed").mkdir(mode=0)
    try:
        done = mpirun("doctor", tmp_path / "closed" / "run", "--quick", "-q", under=heeding_modes)
    finally:
        (tmp_path / "closed").chmod(0o755)
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"directory  {tmp_path}/closed cannot be entered" in done.stdout
    assert "broke off" not in done.stdout


def test_the_rank_that_differs_is_named(mpirun: Callable[..., Any]) -> None:
    left_by_another_job = "export SLURM_STEP_NUM_TASKS=5 SLURM_PROCID=0"
    done = mpirun("doctor", "--quick", "-q", before=f'[ "$OMPI_COMM_WORLD_RANK" = 0 ] || {left_by_another_job};')
    assert done.returncode == 1, done.stdout + done.stderr
    (line,) = [line for line in done.stdout.splitlines() if "started by" in line]
    assert line.startswith("problem")
    assert "[rank 1]" in line
    assert "OMPI_COMM_WORLD_SIZE=2, srun says SLURM_STEP_NUM_TASKS=5" in line


def test_ranks_that_nobody_connected_are_told(spawn: Callable[..., Any]) -> None:
    step = {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "{rank}"}
    ended = [
        spawn("doctor", "--quick", "-q", **{name: value.format(rank=rank) for name, value in step.items()})
        for rank in (0, 1)
    ]
    assert [each.code for each in ended] == [1, 0]
    assert "srun started 2 ranks (SLURM_STEP_NUM_TASKS=2), MPI connects 1" in ended[0].out
    assert ended[1].out == ""
