"""What the tests with a real Slurm share: how jobs are submitted, and what is looked for in what they print."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from slurmcluster import Cluster

HOME = Path(__file__).parents[2]
SCRIPTS = HOME / "scripts" / "slurm"
LOOP = HOME / "tests" / "slurm" / "loop.sbatch"
BIN = Path(sys.executable).parent
IDLE_S = 600.0
"""How long a job may take that takes seconds: these machines have other work."""


def environment(**more: str) -> dict[str, str]:
    """Return what jobs find in their environment: what a user would have exported."""
    found = {
        "PATH": f"{BIN}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
        "PYTHONPATH": str(HOME / "tests" / "slurm"),
        "HPCCKPT_HOME": str(HOME),
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
    n_steps: int = 30,
    pause_s: float = 0.1,
    mebibytes: float = 1.0,
) -> str:
    """Submit a loop of NumPy's with two ranks, by the script that it has; return the id of the job."""
    words = (run, str(n_steps), str(pause_s), str(mebibytes))
    return cluster.sbatch(
        "--ntasks=2", "--nodes=1", "--time=20", *options, LOOP, *words, cwd=place, **environment(HPCCKPT_MPI="pmix")
    )  # fmt: skip


def log(place: Path, name: str) -> str:
    """Return what a job has printed so far."""
    file = place / f"{name}.out"
    return file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""


def wait_for_text(
    cluster: Cluster, place: Path, name: str, text: str, count: int = 1, timeout_s: float = 120.0
) -> None:
    """Wait until a job has printed something so often."""
    cluster.wait(
        lambda: log(place, name).count(text) >= count, timeout_s, f"{text!r} in {name}.out; it has:\n{log(place, name)}"
    )


def diff(place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Compare two runs, tensor by tensor, by the command line."""
    command = [sys.executable, "-m", "hpcckpt", "diff", *words]
    return subprocess.run(command, capture_output=True, text=True, cwd=place, timeout=120, check=False)


def done(cluster: Cluster, job: str, timeout_s: float = IDLE_S) -> int:
    """Wait until a job is done; return how often it was requeued."""
    ended = cluster.wait_for(job, "COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", timeout_s=timeout_s)
    assert (ended.state, ended.exit_code) == ("COMPLETED", "0:0"), cluster.story()
    return ended.restarts


def straight(cluster: Cluster, place: Path, **loop: float) -> None:
    """Run the same loop, left alone, in the run directory ``straight``."""
    done(cluster, submit_loop(cluster, place, "straight", **loop))  # type: ignore[arg-type]


def is_same(place: Path, *runs: str, part: str = ".") -> None:
    """Check that runs ended with the same bits as the one that was left alone."""
    for run in runs:
        compared = diff(place, f"straight/{part}", f"{run}/{part}")
        assert compared.returncode == 0, compared.stdout + compared.stderr
