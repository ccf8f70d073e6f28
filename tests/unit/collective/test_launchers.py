"""Who started this process, from the variables that launchers leave."""

from __future__ import annotations

import os
from pathlib import Path
from unittest.mock import Mock

import pytest

import hpcckpt as hc
from hpcckpt.collective import communicator, connect, launchers
from hpcckpt.collective.launchers import read, tasks_per_node
from hpcckpt.errors import MpiError

pytestmark = pytest.mark.one_case

Environ = dict[str, str]


def openmpi(rank: int, size: int, local_rank: int | None = None, local_size: int | None = None) -> Environ:
    """What mpirun of Open MPI 4.1 leaves."""
    return {
        "OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": str(size),
        "OMPI_COMM_WORLD_LOCAL_RANK": str(rank if local_rank is None else local_rank),
        "OMPI_COMM_WORLD_LOCAL_SIZE": str(size if local_size is None else local_size),
        "PMIX_RANK": str(rank), "PMIX_NAMESPACE": "1792999425", "PMIX_ID": f"1792999425.{rank}",
    }  # fmt: skip


def step(rank: int, per_node: str, node: int = 0, local_rank: int = 0, job: int = 7, number: int = 0) -> Environ:
    """What srun leaves without PMI; `per_node` is in its own short form."""
    counts = tasks_per_node(per_node)
    return {
        "SLURM_JOB_ID": str(job), "SLURM_STEP_ID": str(number), "SLURM_STEPID": str(number),
        "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(local_rank), "SLURM_NODEID": str(node),
        "SLURM_STEP_NUM_TASKS": str(sum(counts)), "SLURM_STEP_NUM_NODES": str(len(counts)),
        "SLURM_STEP_TASKS_PER_NODE": per_node, "SLURM_NTASKS": str(sum(counts)), "SLURM_NPROCS": str(sum(counts)),
    }  # fmt: skip


def step_with_pmix(rank: int, per_node: str, *, job: int = 7, number: int = 0, **more: int) -> Environ:
    """What ``srun --mpi=pmix`` leaves."""
    own = {"PMIX_RANK": str(rank), "PMIX_NAMESPACE": f"slurm.pmix.{job}.{number}"}
    return {**step(rank, per_node, job=job, number=number, **more), **own}


def batch(n_tasks: int, job: int = 7) -> Environ:
    """What a batch script of Slurm has; salloc's shell has the same without the three numbers."""
    return {
        "SLURM_JOB_ID": str(job), "SLURM_NTASKS": str(n_tasks), "SLURM_NPROCS": str(n_tasks), "SLURM_PROCID": "0",
        "SLURM_LOCALID": "0", "SLURM_NODEID": "0", "SLURM_JOB_NUM_NODES": "2", "SLURM_NTASKS_PER_NODE": "2",
        "SLURM_TASKS_PER_NODE": "2(x2)", "SLURM_GTIDS": "0",
    }  # fmt: skip


HYDRA = {"PMI_RANK": "2", "PMI_SIZE": "3", "PMI_FD": "8", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "1"}
PALS = {
    "PALS_RANKID": "5", "PALS_NODEID": "1", "PALS_LOCAL_RANKID": "1", "PMI_RANK": "5", "PMI_SIZE": "8",
    "PMI_LOCAL_RANK": "1", "PMI_LOCAL_SIZE": "4",
}  # fmt: skip


def said(environ: Environ, own_step: str = "") -> tuple[int | None, ...]:
    """Return rank, size, local rank, local size, node and number of nodes."""
    reading = read(environ, own_step)
    assert reading.disagreements == ()
    assert reading.launch is not None
    aspects = ("rank", "size", "local_rank", "local_size", "node", "n_nodes")
    return tuple(None if (fact := getattr(reading.launch, name)) is None else fact.value for name in aspects)


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        (openmpi(3, 4, 1, 2), (3, 4, 1, 2, None, None)),
        (HYDRA, (2, 3, 0, 1, None, None)),
        (PALS, (5, 8, 1, 4, 1, None)),
        ({"ALPS_APP_PE": "7"}, (7, None, None, None, None, None)),
        ({"PMIX_RANK": "1"}, (1, None, None, None, None, None)),
        (step(4, "2(x2),1", node=2), (4, 5, 0, 1, 2, 3)),
        (step_with_pmix(1, "2", local_rank=1), (1, 2, 1, 2, 0, 1)),
        ({**step(1, "2", local_rank=1), "PMI_RANK": "1", "PMI_SIZE": "2"}, (1, 2, 1, 2, 0, 1)),
        ({**step(5, "4", local_rank=0) | {"SLURM_NTASKS": "4"}, "SLURM_HET_SIZE": "2"}, (5, *[None] * 5)),
    ],
    ids=["mpirun", "hydra", "pals", "aprun", "pmix alone", "srun", "srun pmix", "srun pmi2", "heterogeneous job"],
)
def test_each_launcher_is_recognised(environ: Environ, expected: tuple[int | None, ...]) -> None:
    assert said(environ) == expected


@pytest.mark.parametrize(
    "environ",
    [
        {},
        batch(4),
        {**batch(4), "SLURM_STEP_ID": "4294967291", "SLURM_STEP_NUM_TASKS": "1"},
        {**step(0, "1"), "SLURM_STEP_ID": "4294967290"},
        {**batch(4, job=8), "PMIX_RANK": "0", "PMIX_NAMESPACE": "slurm.pmix.7.0"},
        {**batch(4), "PMIX_RANK": "1", "PMIX_NAMESPACE": "slurm.pmix.7.0"},
        {"OMPI_COMM_WORLD_RANK": "many", "OMPI_COMM_WORLD_SIZE": "-2", "PMI_RANK": "", "PMIX_RANK": "٣"},
    ],
    ids=["shell", "batch", "batch step", "interactive step", "batch out of a step", "shell of its job", "no numbers"],
)
def test_what_no_launcher_started_is_no_rank(environ: Environ) -> None:
    assert read(environ) == launchers.Reading(None)


def test_a_batch_script_that_a_rank_submitted_is_no_rank() -> None:
    left = {**step_with_pmix(2, "4", local_rank=2, job=7), **batch(4, job=8)}
    for others in ({}, {"SLURM_NTASKS": "2"}):
        assert read({**left, **others}, "8.batch") == launchers.Reading(None)
    assert said({**left, **openmpi(1, 2)}, "8.batch")[:2] == (1, 2)
    assert read(step_with_pmix(1, "2", job=7), "7.0").launch == read(step_with_pmix(1, "2", job=7)).launch
    assert read(step(1, "2", job=7), "8.0") == launchers.Reading(None)
    parts = {**step(1, "2", job=7), "SLURM_HET_SIZE": "2"}
    assert said(parts, "8.0")[0] == 1
    assert read(parts, "8.batch") == launchers.Reading(None)


def test_a_step_is_known_by_its_ancestors(tmp_path: Path) -> None:
    tree = {9: ("python\0train.py\0", "9 (a) b) S 5 9"), 5: ("slurmstepd: [7.batch]\0", "5 (slurmstepd) S 1 5")}
    for pid, (cmdline, stat) in tree.items():
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "cmdline").write_text(cmdline, encoding="utf-8")
        (tmp_path / str(pid) / "stat").write_text(stat, encoding="utf-8")
    assert launchers._step_above(9, tmp_path) == "7.batch"
    (tmp_path / "5" / "cmdline").write_text("bash\0", encoding="utf-8")
    launchers._step_above.cache_clear()
    assert launchers._step_above(9, tmp_path) == ""
    assert launchers.slurm_step() == launchers._step_above(os.getpid())


@pytest.mark.parametrize(
    "outer",
    [
        batch(4),
        {**batch(4), **step(0, "1")},
        {**batch(4), **step(1, "1(x3)", node=1)},
        step_with_pmix(0, "1") | {"PMIX_RANK": "1", "PMIX_NAMESPACE": "1792999425"},
    ],
    ids=["in an allocation", "in srun --pty bash", "its daemons by srun", "in srun --mpi=pmix --pty bash"],
)
def test_mpirun_within_slurm_counts(outer: Environ) -> None:
    assert said({**outer, **openmpi(1, 2)})[:4] == (1, 2, 1, 2)
    assert said({**outer, **openmpi(0, 3, 0, 1)})[:4] == (0, 3, 0, 1)


def test_srun_out_of_a_shell_of_mpirun_counts() -> None:
    assert said({**openmpi(0, 2), **step_with_pmix(3, "4", local_rank=3)})[:4] == (3, 4, 3, 4)


@pytest.mark.parametrize(
    ("environ", "named"),
    [
        ({**step(1, "4", local_rank=1), **openmpi(1, 2)}, ["OMPI_COMM_WORLD_SIZE=2", "SLURM_STEP_NUM_TASKS=4"]),
        ({**step(2, "4", local_rank=2), **openmpi(0, 4)}, ["OMPI_COMM_WORLD_RANK=0", "SLURM_PROCID=2"]),
        ({**openmpi(0, 2), "PMI_RANK": "1", "PMI_SIZE": "2"}, ["OMPI_COMM_WORLD_RANK=0", "PMI_RANK=1"]),
        ({**openmpi(0, 2), "PMIX_RANK": "1"}, ["OMPI_COMM_WORLD_RANK=0", "PMIX_RANK=1"]),
        ({**PALS, "PMI_LOCAL_RANK": "2"}, ["PALS_LOCAL_RANKID=1", "PMI_LOCAL_RANK=2"]),
        ({**openmpi(4, 4)}, ["OMPI_COMM_WORLD_RANK=4", "OMPI_COMM_WORLD_SIZE=4"]),
        ({**openmpi(0, 2), "OMPI_COMM_WORLD_LOCAL_SIZE": "3"}, ["OMPI_COMM_WORLD_LOCAL_SIZE=3", "WORLD_SIZE=2"]),
        ({**step(0, "2(x2)"), "SLURM_STEP_NUM_TASKS": "5"}, ["SLURM_STEP_NUM_TASKS=5", "2(x2)", "4 tasks"]),
        ({**step(0, "2(x2)"), "SLURM_NTASKS": "8"}, ["SLURM_STEP_NUM_TASKS=4", "SLURM_NTASKS=8"]),
        ({**step(0, "2(x2)"), "SLURM_STEP_NUM_NODES": "3"}, ["SLURM_STEP_NUM_NODES=3", "2(x2)", "2 nodes"]),
        ({**step(0, "2(x2)"), "SLURM_NODEID": "2"}, ["SLURM_NODEID=2", "SLURM_STEP_NUM_NODES=2"]),
        (
            {**step_with_pmix(1, "2", local_rank=1), "PMI_SIZE": "2", "PMI_LOCAL_SIZE": "1"},
            ["PMI_LOCAL_SIZE=1", "SLURM_STEP_TASKS_PER_NODE=2"],
        ),
    ],
)
def test_what_does_not_fit_together_is_named(environ: Environ, named: list[str]) -> None:
    problem = read(environ).problem()
    for words in [*named, "HPCCKPT_LAUNCHER="]:
        assert words in problem


def test_the_user_says_whom_to_believe() -> None:
    environ = {**step(1, "4", local_rank=1), **openmpi(1, 2)}
    assert said({**environ, "HPCCKPT_LAUNCHER": "slurm"})[:2] == (1, 4)
    assert said({**environ, "HPCCKPT_LAUNCHER": "OpenMPI"})[:2] == (1, 2)
    assert read({**environ, "HPCCKPT_LAUNCHER": "none"}) == launchers.Reading(None)
    assert "HPCCKPT_LAUNCHER=mpirun is no launcher" in read({**environ, "HPCCKPT_LAUNCHER": "mpirun"}).problem()
    assert "nothing of it" in read({**environ, "HPCCKPT_LAUNCHER": "pals"}).problem()


@pytest.mark.parametrize(
    ("text", "counts"),
    [("2(x3),1", [2, 2, 2, 1]), ("4", [4]), ("", []), ("2(x", []), ("1,,2", []), ("1(x9999999)", []), ("a", [])],
)
def test_tasks_per_node(text: str, counts: list[int]) -> None:
    assert tasks_per_node(text) == counts


@pytest.fixture
def environ(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """An environment without a launcher, in a process without MPI."""
    monkeypatch.setattr("os.environ", {})
    monkeypatch.setattr(communicator, "_world", None)
    return monkeypatch


def set_all(monkeypatch: pytest.MonkeyPatch, variables: Environ) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


def test_nothing_is_started_where_launchers_disagree(environ: pytest.MonkeyPatch) -> None:
    set_all(environ, {**step(1, "4", local_rank=1), **openmpi(1, 2)})
    with pytest.raises(MpiError, match=r"OMPI_COMM_WORLD_SIZE=2.*SLURM_STEP_NUM_TASKS=4"):
        connect.as_communicator(None)


def test_opening_a_run_reads_the_environment_three_times(environ: pytest.MonkeyPatch, tmp_path: Path) -> None:
    reading = Mock(wraps=launchers.here)
    environ.setattr(launchers, "here", reading)
    hc.Checkpointer(tmp_path / "run").close()
    assert 0 < reading.call_count <= 3


def test_a_batch_script_is_one_rank(environ: pytest.MonkeyPatch) -> None:
    set_all(environ, batch(4))
    assert connect.as_communicator(None).size == 1
    assert (communicator.launched_rank(), communicator.launched_size()) == (None, None)


def test_mpi_itself_counts_before_any_variable(environ: pytest.MonkeyPatch) -> None:
    set_all(environ, {"ALPS_APP_PE": "1"})
    assert (communicator.launched_rank(), communicator.launched_size()) == (1, None)
    communicator.world_is(0, 1)  # alone, as far as MPI knows: that says nothing
    assert (communicator.launched_rank(), communicator.launched_size()) == (1, None)
    communicator.world_is(2, 3)
    assert (communicator.launched_rank(), communicator.launched_size()) == (2, 3)
    set_all(environ, {**step(1, "4", local_rank=1), **openmpi(1, 2)})
    assert communicator.launch_problem() == ""


def test_cores_are_shared_with_the_ranks_of_the_node_alone(environ: pytest.MonkeyPatch) -> None:
    environ.setattr("os.sched_getaffinity", lambda _pid: range(8))
    assert communicator.usable_cores() == 8
    set_all(environ, batch(4))
    assert communicator.usable_cores() == 8
    set_all(environ, openmpi(0, 4, 0, 2))
    assert communicator.usable_cores() == 4
