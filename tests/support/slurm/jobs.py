"""What the tests with a real Slurm share: how jobs are submitted, and what is looked for in what they print."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import hpcckpt as hc
from hpcckpt.rundir import discovery
from tests.support.paths import ROOT, TESTS
from tests.support.slurm.cluster import Cluster, Job
from tests.support.slurm.loop import left_alone

SCRIPTS = ROOT / "scripts" / "slurm"
MODULES = TESTS / "schedulers" / "slurm"
"""Where the module is that configurations of these tests name."""
LOOP = MODULES / "loop.sbatch"
BIN = Path(sys.executable).parent
SIZE = ("--ntasks=2", "--nodes=1", "--time=60")
IDLE_S = 900.0
"""How long a job may take that takes seconds: these machines have other work."""


def environment(**more: str) -> dict[str, str]:
    """Return what jobs find in their environment: what a user would have exported."""
    found = {
        "PATH": f"{BIN}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
        "PYTHONPATH": f"{MODULES}:{ROOT}",
        "CHECKOUT": str(ROOT),
        "HPCCKPT_SETUP": "/dev/null",
        "OMP_NUM_THREADS": "1",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "CUDA_VISIBLE_DEVICES": "",
    }
    return {**found, **more}


def submit_loop(
    cluster: Cluster,
    place: Path,
    run: str,
    *options: str,
    n_steps: int = 10,
    pause_s: float = 0.1,
    mebibytes: float = 1.0,
) -> str:
    """Submit a loop of NumPy's with two ranks, by the script that it has; return the id of the job."""
    words = loop_words(run, n_steps, pause_s, mebibytes)
    return cluster.sbatch(*SIZE, *options, LOOP, *words, cwd=place, **environment(HPCCKPT_MPI="pmix"))


def loop_words(run: str, n_steps: int = 10, pause_s: float = 0.1, mebibytes: float = 1.0) -> tuple[str, ...]:
    """Return what the loop is given."""
    return (run, str(n_steps), str(pause_s), str(mebibytes))


def hold(place: Path, *runs: str, n_restarts: int | str = "") -> None:
    """Have the loops of these runs go on, however many steps they do; or until they were begun again so often."""
    for run in runs:
        held = place / f"{run}.held"
        held.parent.mkdir(exist_ok=True)
        held.write_text(str(n_restarts), encoding="ascii")


def let_go(place: Path, *runs: str) -> None:
    """Have the loops of these runs end."""
    for run in runs:
        (place / f"{run}.held").unlink()


def log(place: Path, name: str) -> str:
    """Return what a job has printed so far."""
    file = place / f"{name}.out"
    return file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""


def wait_for_text(cluster: Cluster, place: Path, name: str, text: str, count: int = 1) -> None:
    """Wait until a job has printed something so often."""
    cluster.wait(lambda: log(place, name).count(text) >= count, IDLE_S, f"{count} times {text!r} in {place / name}.out")


def wait_for_checkpoint(cluster: Cluster, run: Path) -> None:
    """Wait until a run has a checkpoint."""
    cluster.wait(lambda: hc.latest_checkpoint(run) is not None, IDLE_S, f"a checkpoint in {run}")


def diff(place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Compare two runs, tensor by tensor, by the command line."""
    command = [sys.executable, "-m", "hpcckpt", "diff", *words]
    return subprocess.run(command, capture_output=True, text=True, cwd=place, timeout=IDLE_S, check=False)


def end(cluster: Cluster, job: str, timeout_s: float = IDLE_S) -> Job:
    """Wait until a job has ended, however it does."""
    return cluster.wait_for(
        job, "COMPLETED", "FAILED", "CANCELLED", "PREEMPTED", "TIMEOUT", "NODE_FAIL", timeout_s=timeout_s
    )


def done(cluster: Cluster, job: str, timeout_s: float = IDLE_S) -> int:
    """Wait until a job is done; return how often it was requeued."""
    ended = end(cluster, job, timeout_s)
    assert (ended.state, ended.exit_code) == ("COMPLETED", "0:0"), cluster.story()
    return ended.restarts


def is_same(run: Path, mebibytes: float = 1.0) -> None:
    """Check that a loop has ended with the bits that as many steps have of which none is disturbed."""
    n_steps = discovery.latest_step(run)
    assert n_steps is not None
    found, expected = hc.load(run), left_alone(n_steps, mebibytes)
    assert set(found) == set(expected)
    assert [name for name in found if found[name].tobytes() != expected[name].tobytes()] == []


def is_equal(place: Path, *parts: str) -> None:
    """Check that two runs have the same bits."""
    compared = diff(place, *parts)
    assert compared.returncode == 0, compared.stdout + compared.stderr
