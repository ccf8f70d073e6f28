"""A Slurm of the tests' own, started once for all of them."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.slurm.cluster import Cluster, missing


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A cluster of some nodes; skipped where Slurm is not installed."""
    absent = missing()
    if absent:
        pytest.skip(f"no {', '.join(absent)} on this machine (apt-get install slurm-wlm munge)")
    directory = Path(tempfile.mkdtemp(prefix="hpcckpt-slurm-"))  # short: the path of a socket has 107 bytes
    started = Cluster(directory)
    try:
        started.start()
        yield started
    finally:
        started.stop()


@pytest.fixture(scope="session")
def pmix(cluster: Cluster) -> None:
    """Skip where this Slurm does not connect the ranks of this MPI, for want of a PMIx that both know."""
    program = "from mpi4py import MPI; print(MPI.COMM_WORLD.size)"
    command = ("srun", "--mpi=pmix", "--nodes=1", "--ntasks=2", sys.executable, "-c", program)
    if cluster.run(*command, check=False).split() != ["2", "2"]:
        pytest.skip("srun --mpi=pmix starts no ranks of this MPI here (Debian's openmpi-bin goes with its Slurm)")


@pytest.fixture
def place(cluster: Cluster, tmp_path: Path) -> Iterator[Path]:
    """Where jobs are submitted, and write; whatever of them is left in the queue ends with the test."""
    yield tmp_path
    cluster.empty(tmp_path)
