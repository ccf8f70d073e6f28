"""``sbatch scripts/slurm/train.sbatch CONFIG`` with a real Slurm, TensorFlow and MPI: however many jobs, the same bits.

One warning is sent as Slurm sends it. That Slurm sends them itself, because the time of one job after the other is up,
takes minutes: those tests are nightly.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.slurm.cluster import Cluster
from tests.support.slurm.jobs import SCRIPTS, done, environment, hold, is_equal, let_go, log, wait_for_text

pytestmark = [
    pytest.mark.slow, pytest.mark.tf, pytest.mark.timeout(3600), pytest.mark.usefixtures("pmix"),
]  # fmt: skip
SCRIPT = SCRIPTS / "train.sbatch"


def config(place: Path, n_batches: int, pause_s: float) -> str:
    """Write a configuration whose batches take their time while it is held; return its name."""
    slow = {"Slow": {"seconds": pause_s, "file": str(place / "run.held")}}
    cycle: dict[str, Any] = {
        "seed": 1,
        "datasets": {"ktf.datasets.mnist.from_raw": {"limit": 2 * n_batches * 5, "batch_size": 5}},
        "model": {"ktf.models.OneHeadNet": {"num_outputs": 10}},
        "loss": {"tf.keras.losses.SparseCategoricalCrossentropy": {"from_logits": True}},
        "train_loop": {"ktf.train.KerasTrainLoop": {"num_epochs": 1, "callbacks": [slow]}},
    }
    (place / "slow.hjson").write_text(json.dumps([cycle]), encoding="utf-8")
    return "slow.hjson"


EXAMPLE = SCRIPTS.parents[1] / "examples" / "configs" / "slurm.hjson"


def train(cluster: Cluster, place: Path, run: str, name: str, *options: str) -> str:
    """Submit a training on two ranks; return the id of the job."""
    words = ("--ntasks=2", "--nodes=1", *options, SCRIPT, name, "--allow", "slurmpieces")
    return cluster.sbatch(*words, cwd=place, **environment(HPCCKPT_MPI="pmix", HPCCKPT_RUN=run))


def test_a_training_that_is_warned_is_requeued_and_ends_with_the_same_bits(cluster, place):
    name = config(place, n_batches=40, pause_s=2.0)
    hold(place, "run")
    job = train(cluster, place, "run", name, "--time=60")
    wait_for_text(cluster, place, f"hpcckpt-{job}", "hpcckpt: watching")
    cluster.run("scancel", "--batch", "--signal=USR1", job)
    wait_for_text(cluster, place, f"hpcckpt-{job}", "checkpointed: restart 1 of at most 20")
    let_go(place, "run")
    done(cluster, train(cluster, place, "straight", name, "--time=60"))
    assert done(cluster, job) == 1
    assert "ranks 2->2 level=exact" in log(place, f"hpcckpt-{job}")
    is_equal(place, "straight/cycle-1", "run/cycle-1")


@pytest.mark.nightly
def test_a_training_longer_than_its_limit_is_requeued_and_ends_with_the_same_bits(cluster, place):
    name = config(place, n_batches=600, pause_s=0.3)
    hold(place, "run")
    job = train(cluster, place, "run", name, "--time=3", "--signal=B:USR1@120")
    wait_for_text(cluster, place, f"hpcckpt-{job}", f" of at most 20: scontrol requeue {job}", count=3)
    let_go(place, "run")
    assert done(cluster, job, 3000.0) >= 3
    told = log(place, f"hpcckpt-{job}")
    assert told.count("hpcckpt: stopping ") >= 3
    assert "reason='SIGUSR1 on rank" in told
    done(cluster, train(cluster, place, "straight", name, "--time=60"))
    is_equal(place, "straight/cycle-1", "run/cycle-1")


@pytest.mark.nightly
def test_the_mnist_example_is_requeued_at_its_limit_and_ends_with_the_same_bits(cluster, place):
    job = train(cluster, place, "run", str(EXAMPLE), "--time=1", "--signal=B:USR1@10")
    assert done(cluster, job, 3000.0) >= 2
    done(cluster, train(cluster, place, "straight", str(EXAMPLE), "--time=60"))
    is_equal(place, "straight/cycle-1", "run/cycle-1")
