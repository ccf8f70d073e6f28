"""Ranks that a real Slurm starts, however it was come to that, know which of how many they are, and where."""

from __future__ import annotations

import json
import re
import sys
from typing import Any

import pytest

from tests.support.mpi.launch import find_mpirun
from tests.support.paths import TESTS
from tests.support.slurm.jobs import done, end, environment, log

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200), pytest.mark.usefixtures("pmix")]
RANKS = f"{sys.executable} {TESTS / 'schedulers' / 'slurm' / 'slurmranks.py'}"
SRUN = "srun --mpi=pmix --time=60"


def ranks(text: str) -> list[dict[str, Any]]:
    """Return what was printed on each rank."""
    return [json.loads(line) for line in re.findall(r"^rank (.*)$", text, re.MULTILINE)]


def assert_all_agree(found: list[dict[str, Any]], size: int, n_nodes: int) -> None:
    """Check that there are N ranks, and that what is read from their environment is what MPI says."""
    for rank in found:
        assert rank["disagreements"] == []
        known = {name: value for name, value in rank["environment"].items() if value is not None}
        assert {"rank", "size", "local_rank", "local_size"} <= set(known)
        assert rank["mpi"] == {**rank["mpi"], **known}
        assert rank["mpi"]["n_nodes"] == n_nodes
    assert sorted(rank["mpi"]["rank"] for rank in found) == list(range(size))


@pytest.mark.parametrize("n_nodes", [1, 2])
def test_ranks_of_a_step(n_nodes, cluster):
    told = cluster.run(*SRUN.split(), f"--nodes={n_nodes}", "--ntasks=3", *RANKS.split())
    assert_all_agree(ranks(told), 3, n_nodes)


def test_ranks_of_a_step_that_was_started_out_of_a_step(cluster):
    inner = f"{SRUN} --overlap --nodes=1 --ntasks=2 {RANKS}"
    told = cluster.run(*SRUN.split(), "--nodes=1", "--ntasks=2", "sh", "-c", f"[ $SLURM_PROCID = 0 ] || exec {inner}")
    assert_all_agree(ranks(told), 2, 1)


@pytest.mark.parametrize("n_nodes", [1, 2])
def test_ranks_of_mpirun_in_an_allocation(n_nodes, cluster, place):
    size = (f"--nodes={n_nodes}", "--ntasks=2", "--time=60")
    settings = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    command = f"{find_mpirun()} -n 2 --bind-to none --mca btl_tcp_if_include lo {RANKS}"
    job = cluster.sbatch(*size, "--output=job.out", "--wrap", command, cwd=place, **environment(**settings))
    end(cluster, job)
    assert_all_agree(ranks(log(place, "job")), 2, n_nodes)


def test_a_job_that_a_rank_has_submitted_is_no_rank_and_has_ranks_of_its_own(cluster, place):
    (place / "inner.sh").write_text(f"#!/bin/sh\n{RANKS} --without-mpi\n{SRUN} {RANKS}\n", encoding="utf-8")
    submit = "sbatch --parsable --ntasks=2 --nodes=1 --time=60 --output=inner.out inner.sh"
    outer = (*SRUN.split(), "--nodes=1", "--ntasks=3", "sh", "-c", f"[ $SLURM_PROCID != 1 ] || exec {submit}")
    job = cluster.run(*outer, cwd=place).strip()
    done(cluster, job)
    batch, *own = ranks(log(place, "inner"))
    assert (batch["environment"], batch["disagreements"]) == (None, [])
    assert_all_agree(own, 2, 1)


def test_tasks_without_mpi_know_which_they_are(cluster):
    size = ("--mpi=none", "--nodes=2", "--ntasks=3", "--time=60")
    found = ranks(cluster.run("srun", *size, *RANKS.split(), "--without-mpi"))
    assert [rank["disagreements"] for rank in found] == [[]] * 3
    told = [rank["environment"] for rank in found]
    assert sorted(one["rank"] for one in told) == [0, 1, 2]
    assert {(one["size"], one["n_nodes"]) for one in told} == {(3, 2)}
    assert sorted((one["local_rank"], one["local_size"]) for one in told) == [(0, 1), (0, 2), (1, 2)]
