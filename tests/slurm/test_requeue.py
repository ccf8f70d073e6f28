"""Jobs of a real Slurm that are warned, killed, or lose their node go on, and end as if they had been left alone."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import pytest
from slurmcluster import Cluster
from slurmjobs import IDLE_S, LOOP, SCRIPTS, done, environment, is_same, log, straight, submit_loop, wait_for_text

import hpcckpt as hc

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800), pytest.mark.usefixtures("pmix")]


def test_a_job_that_needs_more_time_than_it_has_is_requeued_and_ends_with_the_same_bits(cluster, place):
    size = {"n_steps": 400, "pause_s": 0.2}
    job = submit_loop(cluster, place, "run", "--time=1", "--signal=B:USR1@50", **size)
    straight(cluster, place, **size)
    n_requeued = done(cluster, job)
    told = log(place, f"loop-{job}")
    assert n_requeued >= 3, told
    assert told.count("signal=SIGUSR1 (heard)") == told.count(f": scontrol requeue {job}") == n_requeued
    assert "reason='SIGUSR1 on rank" in told
    is_same(place, "run")


def test_jobs_of_an_array_are_requeued_each_by_itself(cluster, place):
    array = submit_loop(cluster, place, "runs", "--array=1-2", "--output=%A_%a.out", n_steps=30, pause_s=0.2)
    straight(cluster, place)
    for task in ("1", "2"):
        wait_for_text(cluster, place, f"{array}_{task}", "hpcckpt: watching")
        cluster.run("scancel", "--batch", "--signal=USR1", f"{array}_{task}")
    for task in ("1", "2"):
        assert done(cluster, f"{array}_{task}") == 1
        assert f"scontrol requeue {array}_{task}" in log(place, f"{array}_{task}")
    is_same(place, "runs/1", "runs/2")


def test_a_job_whose_node_goes_down_is_begun_again_and_goes_on(cluster, place):
    job = submit_loop(cluster, place, "run", pause_s=0.2)
    wait_for_text(cluster, place, f"loop-{job}", "hpcckpt: watching")
    cluster.wait(lambda: hc.latest_checkpoint(place / "run") is not None, 60.0, "a checkpoint")
    first = cluster.job(job).fields["NodeList"]
    cluster.run("scontrol", "update", f"NodeName={first}", "State=DOWN", "Reason=test")
    straight(cluster, place)
    assert done(cluster, job) == 1
    assert log(place, f"loop-{job}").count("loop: begins behind step 0 ") == 1
    is_same(place, "run")


def test_a_job_whose_ranks_are_killed_amid_a_save_has_failed_and_submitted_again_goes_on(cluster, place):
    size = {"n_steps": 30, "pause_s": 0.3, "mebibytes": 128.0}
    job = submit_loop(cluster, place, "run", **size)
    cluster.wait(lambda: len(list((place / "run").glob("step-*"))) >= 2, 300.0, "two checkpoints", every_s=0.02)
    cluster.wait(lambda: is_saving(place / "run"), 120.0, "a save to be under way", every_s=0.005)
    cluster.run("scancel", "--signal=KILL", f"{job}.0")
    ended = cluster.wait_for(job, "FAILED", "COMPLETED", timeout_s=60.0)
    assert (ended.restarts, ended.exit_code) == (0, "137:0")
    again = submit_loop(cluster, place, "run", **size)
    straight(cluster, place, **size)
    assert done(cluster, again) == 0
    assert "loop: begins behind step 0 " not in log(place, f"loop-{again}")
    is_same(place, "run")


def test_the_next_job_of_a_chain_goes_on_where_one_has_stopped_and_those_behind_the_last_are_not_run(cluster, place):
    words = ("run", "40", "0.2", "1.0")
    chain = environment(HPCCKPT_MPI="pmix", HPCCKPT_CHAIN="chained")
    command = (str(SCRIPTS / "chain.sh"), "4", "--ntasks=2", "--nodes=1", "--time=20", str(LOOP), *words)
    first, second, third, fourth = cluster.run(*command, cwd=place, **chain).split()
    wait_for_text(cluster, place, f"chained-{first}", "hpcckpt: watching")
    cluster.run("scancel", first)
    assert cluster.wait_for(first, "CANCELLED", timeout_s=90.0).restarts == 0
    wait_for_text(cluster, place, f"chained-{second}", "hpcckpt: watching")
    cluster.run("scancel", "--batch", "--signal=USR1", second)
    assert done_with_75(cluster, second)
    assert done(cluster, third) == 0
    assert "hpcckpt: done" in log(place, f"chained-{third}")
    assert cluster.wait_for(fourth, "CANCELLED", timeout_s=60.0).fields["RunTime"] == "00:00:00"
    straight(cluster, place, n_steps=40, pause_s=0.2)
    is_same(place, "run")


def is_saving(run: Path) -> bool:
    """Say whether data of a step that is not published yet were written just now."""
    with contextlib.suppress(FileNotFoundError):
        return any(time.time() - file.stat().st_mtime < 0.05 for file in run.glob(".next-*/data/*"))
    return False


def done_with_75(cluster: Cluster, job: str) -> bool:
    """Wait until a job of a chain has checkpointed and ended."""
    ended = cluster.wait_for(job, "FAILED", "COMPLETED", timeout_s=IDLE_S)
    return (ended.restarts, ended.exit_code) == (0, "75:0")


def test_a_cancelled_job_saves_and_is_not_put_into_the_queue_again(cluster, place):
    job = submit_loop(cluster, place, "run", n_steps=100_000)
    wait_for_text(cluster, place, f"loop-{job}", "hpcckpt: watching")
    cluster.run("scancel", job)
    assert cluster.wait_for(job, "CANCELLED", timeout_s=60.0).restarts == 0
    told = log(place, f"loop-{job}")
    assert "hpcckpt: stopped step=" in told
    assert "checkpointed: ended by somebody" in told


def test_a_halted_job_is_not_put_into_the_queue_again(cluster, place):
    job = submit_loop(cluster, place, "run", n_steps=100_000)
    cluster.wait(lambda: hc.latest_checkpoint(place / "run") is not None, 120.0, "a checkpoint")
    hc.preemption.write_halt(place / "run", hc.preemption.Halt())
    ended = cluster.wait_for(job, "FAILED", "COMPLETED", timeout_s=120.0)
    assert (ended.restarts, ended.exit_code) == (0, "75:0")
    assert "halted: a file HALT has stopped it" in log(place, f"loop-{job}")
