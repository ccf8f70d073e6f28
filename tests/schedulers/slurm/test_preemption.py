"""Jobs of a partition that a partition of higher priority preempts, on a real Slurm."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.slurm.cluster import Cluster
from tests.support.slurm.jobs import (
    IDLE_S,
    SIZE,
    done,
    environment,
    hold,
    is_same,
    let_go,
    log,
    submit_loop,
    wait_for_checkpoint,
    wait_for_text,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600), pytest.mark.usefixtures("pmix")]

PARTITIONS = ("requeue", "cancel", "requeue-now", "cancel-now")
"""By PreemptMode; the last two without GraceTime."""
NEVER_CATCHES = """\
#!/usr/bin/env bash
#SBATCH --output=%x-%j.out --open-mode=append --requeue
exec hpcckpt supervise -- srun sh -c '
    echo "started $HPCCKPT_RESTART_COUNT"
    [ "$HPCCKPT_RESTART_COUNT" != 0 ] || sleep 3600'
"""


def preempt(cluster: Cluster, place: Path) -> None:
    """Run a job of higher priority on the node of the preemptible jobs."""
    job = cluster.sbatch(
        "--partition=urgent",
        "--exclusive",
        "--nodes=1",
        "--output=/dev/null",
        "--wrap=true",
        cwd=place,
        **environment(),
    )
    cluster.wait_for(job, "COMPLETED", timeout_s=IDLE_S)


@pytest.mark.parametrize("partition", PARTITIONS)
def test_a_preempted_job_saves_is_requeued_and_ends_with_the_same_bits(cluster, place, partition):
    hold(place, "run")
    job = submit_loop(cluster, place, "run", f"--partition={partition}", "--exclusive")
    wait_for_checkpoint(cluster, place / "run")
    preempt(cluster, place)
    let_go(place, "run")
    assert done(cluster, job) == 1
    text = log(place, f"loop-{job}")
    assert "reason='SIGTERM on rank" in text
    assert text.count("loop: begins after step 0 ") == 1
    assert "preempted, checkpointed: " in text or "the scheduler has put it into the queue again" in text
    is_same(place / "run")


@pytest.mark.parametrize("partition", PARTITIONS)
def test_a_job_preempted_before_its_ranks_catch_signals_begins_again(cluster, place, partition):
    (place / "deaf.sh").write_text(NEVER_CATCHES, encoding="utf-8")
    job = cluster.sbatch(*SIZE, "--exclusive", f"--partition={partition}", "deaf.sh", cwd=place, **environment())
    wait_for_text(cluster, place, f"deaf.sh-{job}", "started 0", count=2)
    preempt(cluster, place)
    assert done(cluster, job) == 1
    assert log(place, f"deaf.sh-{job}").count("started 1") == 2
