"""``sbatch program.sbatch RUN COMMAND...`` on a real Slurm: a program of PyTorch, from a copy outside the checkout."""

from __future__ import annotations

import re
import shutil
from importlib.util import find_spec

import pytest

from tests.support.mnist import random_mnist
from tests.support.paths import ROOT
from tests.support.slurm.jobs import SCRIPTS, done, environment, log, wait_for_text

pytestmark = [
    pytest.mark.slow, pytest.mark.torch, pytest.mark.timeout(3600), pytest.mark.usefixtures("pmix"),
    pytest.mark.skipif(find_spec("torch") is None, reason="needs PyTorch"),
]  # fmt: skip


def test_a_program_of_pytorch_is_warned_and_requeued_wherever_the_script_is(cluster, place):
    random_mnist(place / "mnist.npz")
    script = shutil.copy(SCRIPTS / "program.sbatch", place / "mine.sbatch")
    variables = environment(HPCCKPT_MPI="pmix")
    del variables["CHECKOUT"]
    options = ("--run", "p", "--data", "mnist.npz", "--batch-size", "4", "--every", "1000", "--epochs", "20")
    words = ("p", "python", ROOT / "examples" / "torch_resume.py", *options)
    job = cluster.sbatch("--ntasks=2", "--nodes=1", "--time=60", script, *words, cwd=place, **variables)
    name = f"hpcckpt-program-{job}"
    wait_for_text(cluster, place, name, "begin: step=0 ")
    cluster.run("scancel", "--batch", "--signal=USR1", job)
    assert done(cluster, job) == 1
    stopped = re.search(r"stopped step=(\d+) exit=75", log(place, name))
    assert stopped
    assert f"begin: step={stopped[1]} ranks=2" in log(place, name)
    assert "done: step=1000 " in log(place, name)
