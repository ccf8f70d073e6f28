"""Jobs of a real Slurm that are warned, killed, or lose their node go on, and end as if they had been left alone."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

import hpcckpt as hc
from hpcckpt.jobs.supervisor import ALREADY
from hpcckpt.rundir import discovery
from tests.support.paths import TESTS
from tests.support.slurm.cluster import Cluster
from tests.support.slurm.jobs import (
    IDLE_S,
    LOOP,
    SCRIPTS,
    SIZE,
    done,
    end,
    environment,
    hold,
    is_equal,
    is_same,
    let_go,
    log,
    loop_words,
    submit_loop,
    wait_for_checkpoint,
    wait_for_text,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600), pytest.mark.usefixtures("pmix", "limited")]


RESTARTS = {"run": 3, "printed": 1}
"""By run directory: how often a job is requeued at least because its time is up."""
PAUSE_S = 0.3
"""Between the steps of these: they wait for their warning, and what they do is done once more without it."""


class Limited(NamedTuple):
    """Jobs that have less time than they need, by the names of their run directories."""

    place: Path
    jobs: Mapping[str, str]


@pytest.fixture(scope="module")
def limited(cluster: Cluster, pmix: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Limited]:
    """Begun before the first test here: Slurm looks at time limits twice a minute only."""
    place = tmp_path_factory.mktemp("limited")
    for run, n_restarts in RESTARTS.items():
        hold(place, run, n_restarts=n_restarts)
    # Slurm looks every 30 s, and warns up to 30 s early: not in the first 30 s, in which no rank may listen yet
    limit = ("--partition=apart", "--time=3", "--signal=B:USR1@120")
    (place / "job.sh").write_text(printed("printed", "--time", "3m", "--signal-lead", "120"), encoding="utf-8")
    jobs = {
        "run": submit_loop(cluster, place, "run", *limit, pause_s=PAUSE_S),
        "printed": cluster.sbatch("job.sh", cwd=place, **environment(HPCCKPT_MPI="pmix")),
    }
    yield Limited(place, jobs)
    cluster.empty(place)


def printed(run: str, *words: str) -> str:
    """Return what ``hpcckpt jobscript`` prints for the loop."""
    command = ("hpcckpt", "jobscript", "--scheduler=slurm", "--partition=apart", "--nodes=1", "--ranks-per-node=2")
    loop = (
        "--run",
        run,
        "--",
        "python",
        str(TESTS / "support" / "slurm" / "loop.py"),
        *loop_words(run, pause_s=PAUSE_S),
    )
    return subprocess.run(
        [sys.executable, "-m", *command, *words, *loop], capture_output=True, text=True, check=True, timeout=IDLE_S
    ).stdout


def test_what_slurm_says_of_a_job_that_waits_in_the_queue_already_is_known(cluster, place):
    job = submit_loop(cluster, place, "run", "--begin=now+1hour")
    with pytest.raises(AssertionError) as refused:
        cluster.run("scontrol", "requeue", job)
    assert ALREADY.search(str(refused.value).splitlines()[0])


def test_jobs_of_an_array_are_requeued_each_by_itself(cluster, place):
    runs = ("runs/1", "runs/2")
    hold(place, *runs)
    array = submit_loop(cluster, place, "runs", "--array=1-2", "--output=%A_%a.out")
    for task in ("1", "2"):
        wait_for_text(cluster, place, f"{array}_{task}", "hpcckpt: watching")
        cluster.run("scancel", "--batch", "--signal=USR1", f"{array}_{task}")
    for task in ("1", "2"):
        wait_for_text(cluster, place, f"{array}_{task}", f"scontrol requeue {array}_{task}")
    let_go(place, *runs)
    assert [done(cluster, f"{array}_{task}") for task in ("1", "2")] == [1, 1]
    for run in runs:
        is_same(place / run)


def test_a_job_on_two_nodes_is_requeued_and_ends_with_the_same_bits(cluster, place):
    hold(place, "run")
    job = submit_loop(cluster, place, "run", "--nodes=2", "--ntasks-per-node=1")
    wait_for_checkpoint(cluster, place / "run")
    assert cluster.job(job).fields["NodeList"] == "n[1-2]"
    cluster.run("scancel", "--batch", "--signal=USR1", job)
    wait_for_text(cluster, place, f"loop-{job}", f"scontrol requeue {job}")
    let_go(place, "run")
    assert done(cluster, job) == 1
    assert "loop: begins after step 0 on 2 ranks of 2 nodes" in log(place, f"loop-{job}")
    is_same(place / "run")


def test_a_job_whose_node_goes_down_is_begun_again_and_goes_on(cluster, place):
    hold(place, "run")
    job = submit_loop(cluster, place, "run")
    wait_for_checkpoint(cluster, place / "run")
    first = cluster.job(job).fields["NodeList"]
    cluster.run("scontrol", "update", f"NodeName={first}", "State=DOWN", "Reason=test")
    let_go(place, "run")
    assert done(cluster, job) == 1
    assert log(place, f"loop-{job}").count("loop: begins after step 0 ") == 1
    is_same(place / "run")


def test_a_job_killed_during_a_save_fails_and_resumes_when_submitted_again(cluster, place):
    hold(place, "run")
    job = submit_loop(cluster, place, "run", mebibytes=128.0)
    cluster.wait(lambda: len(list((place / "run").glob("step-*"))) >= 2, 600.0, "two checkpoints", every_s=0.02)
    cluster.wait(lambda: is_saving(place / "run"), 600.0, "a save to be under way", every_s=0.005)
    cluster.run("scancel", "--signal=KILL", f"{job}.0")
    ended = end(cluster, job)
    assert (ended.state, ended.restarts, ended.exit_code) == ("FAILED", 0, "137:0")
    let_go(place, "run")
    again = submit_loop(cluster, place, "run", mebibytes=128.0)
    assert done(cluster, again) == 0
    assert "loop: begins after step 0 " not in log(place, f"loop-{again}")
    is_same(place / "run", mebibytes=128.0)


def is_saving(run: Path) -> bool:
    """Return True if data of a step that is not published yet were written just now."""
    with contextlib.suppress(FileNotFoundError):
        return any(time.time() - file.stat().st_mtime < 0.05 for file in run.glob(".next-*/data/*"))
    return False


def test_a_chain_resumes_with_its_next_job_and_skips_those_after_the_last(cluster, place):
    hold(place, "run")
    chain = environment(HPCCKPT_MPI="pmix", HPCCKPT_CHAIN="chained")
    command = (str(SCRIPTS / "chain.sh"), "4", *SIZE, str(LOOP), *loop_words("run"))
    first, second, third, fourth = cluster.run(*command, cwd=place, **chain).split()
    wait_for_text(cluster, place, f"chained-{first}", "hpcckpt: watching")
    cluster.run("scancel", first)
    ended = end(cluster, first)
    assert (ended.state, ended.restarts) == ("CANCELLED", 0)
    wait_for_text(cluster, place, f"chained-{second}", "hpcckpt: watching")
    cluster.run("scancel", "--batch", "--signal=USR1", second)
    ended = end(cluster, second)
    assert (ended.state, ended.restarts, ended.exit_code) == ("FAILED", 0, "75:0")
    let_go(place, "run")
    assert done(cluster, third) == 0
    assert "hpcckpt: done" in log(place, f"chained-{third}")
    ended = end(cluster, fourth)
    assert (ended.state, ended.fields["RunTime"]) == ("CANCELLED", "00:00:00")
    is_same(place / "run")


def test_a_cancelled_job_saves_and_is_not_put_into_the_queue_again(cluster, place):
    job = submit_loop(cluster, place, "run", n_steps=100_000)
    wait_for_text(cluster, place, f"loop-{job}", "hpcckpt: watching")
    cluster.run("scancel", job)
    ended = end(cluster, job)
    assert (ended.state, ended.restarts) == ("CANCELLED", 0)
    told = log(place, f"loop-{job}")
    assert "hpcckpt: stopped step=" in told
    assert "checkpointed: ended by a person" in told


def test_a_halted_job_is_not_put_into_the_queue_again(cluster, place):
    job = submit_loop(cluster, place, "run", n_steps=100_000)
    wait_for_checkpoint(cluster, place / "run")
    hc.preemption.write_halt(place / "run", hc.preemption.Halt())
    ended = end(cluster, job)
    assert (ended.state, ended.restarts, ended.exit_code) == ("FAILED", 0, "75:0")
    assert "halted: a file HALT has stopped it" in log(place, f"loop-{job}")


def test_a_job_that_runs_out_of_time_is_requeued_and_ends_with_the_same_bits(cluster, limited):
    end_after(cluster, limited, "run", "loop")


def test_the_script_that_jobscript_prints_is_requeued_and_ends_with_the_same_bits(cluster, limited):
    end_after(cluster, limited, "printed", "printed")


def end_after(cluster: Cluster, limited: Limited, run: str, name: str) -> None:
    """Wait for the end of a job that Slurm warns, and check that it was requeued each time."""
    place, job = limited.place, limited.jobs[run]
    n_requeued = done(cluster, job, 2 * IDLE_S)
    assert n_requeued >= RESTARTS[run]
    told = log(place, f"{name}-{job}")
    decided = told.count(f" of at most 20: scontrol requeue {job}")  # each may be tried again and again
    assert told.count("signal=SIGUSR1 (received)") >= decided == n_requeued, told
    assert "reason='SIGUSR1 on rank" in told
    is_same(place / run)
    n_steps = discovery.latest_step(place / run)
    done(cluster, submit_loop(cluster, place, f"alone-{run}", n_steps=n_steps, pause_s=0.0))
    is_equal(place, f"alone-{run}", run)
