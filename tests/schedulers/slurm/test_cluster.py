"""The Slurm of these tests comes up beside others, and nothing of it outlives the tests."""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.support.programs import environment
from tests.support.slurm import cluster as slurm_cluster
from tests.support.slurm.cluster import Cluster
from tests.support.slurm.reaper import processes

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.usefixtures("cluster")]
BEGIN = """
import sys, time
from pathlib import Path
from tests.support.slurm.cluster import Cluster

cluster = Cluster(Path(sys.argv[1]))
cluster.start()
print("up", flush=True)
time.sleep(900)
"""


@pytest.fixture
def directory() -> Path:
    """Where a cluster may be; it takes it away itself."""
    return Path(tempfile.mkdtemp(prefix="hpcckpt-slurm-"))


def test_a_second_cluster_ends_with_the_process_that_has_begun_it_however_that_ends(cluster, directory):
    command = [sys.executable, "-c", BEGIN, str(directory)]
    mark = Cluster(directory).mark
    with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        assert list(processes(mark))
        process.kill()
    cluster.wait(lambda: not directory.exists(), 300.0, "the second cluster to end")
    assert list(processes(mark)) == []
    cluster.wait(lambda: bool(cluster.idle_nodes()), 300.0, "the first cluster to answer")


def test_a_cluster_whose_port_somebody_takes_comes_up_on_another(directory, monkeypatch):
    draw = slurm_cluster.free_ports
    with socket.create_server(("0.0.0.0", 0)) as somebody:
        drawn = iter([[somebody.getsockname()[1], *draw(len(slurm_cluster.NODES))]])
        monkeypatch.setattr(slurm_cluster, "free_ports", lambda count: next(drawn, None) or draw(count))
        second = Cluster(directory)
        try:
            second.start()
            assert next(drawn, None) is None
        finally:
            second.stop()
    assert not directory.exists()
