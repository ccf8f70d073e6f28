"""A job that is stopped keeps its lock; one that was taken for dead publishes nothing when it wakes up."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import hpcckpt as hc
from hpcckpt.errors import LockedError
from hpcckpt.format import layout
from hpcckpt.native.posix_files import REAL
from hpcckpt.rundir.lock import read_holder
from hpcckpt.rundir.retention import leftovers
from hpcckpt.testing.ranks import run_ranks
from tests.support.mpi.launch import LIMIT_S, started
from tests.support.mpi.states import state_of


@contextmanager
def stopped_job(directory: Path, n_ranks: int) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Start a job whose root stops while it writes step 2; yield it and root's process id."""
    fault = {"phase": "2-written", "action": "stop"}
    request = {"directory": str(directory), "saves": [[1, 1, False], [2, 2, False]], "fault": fault}
    with started(n_ranks, "job_faults", request) as job:
        holder = wait_for_stop(directory)
        try:
            yield job, holder
        finally:
            with suppress(ProcessLookupError):
                os.kill(holder, signal.SIGCONT)


def wait_for_stop(directory: Path) -> int:
    """Return the process id of the lock's holder, once it is stopped."""
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        holder = read_holder(directory / layout.LOCK)
        if holder is not None:
            state = Path(f"/proc/{holder.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
            if state == "T":
                return holder.pid
        time.sleep(0.02)
    raise AssertionError("the job did not come to its fault")


@pytest.mark.parametrize("n_ranks", [1, 2])
def test_a_job_that_stands_still_keeps_its_lock(tmp_path: Path, n_ranks: int) -> None:
    with stopped_job(tmp_path, n_ranks) as (job, pid):
        with pytest.raises(LockedError, match=f"process {pid}"):
            run_ranks(2, lambda comm: hc.Checkpointer(tmp_path, comm=comm).save(5, state_of(comm, 5)))
        os.kill(pid, signal.SIGCONT)
        out, err = job.communicate(timeout=LIMIT_S)
    assert (job.returncode, out.count("survived")) == (0, n_ranks), err
    assert hc.latest_checkpoint(tmp_path) == tmp_path / layout.step_dirname(2)


@pytest.mark.parametrize("n_ranks", [1, 2])
def test_a_job_that_lost_its_lock_publishes_nothing(tmp_path: Path, n_ranks: int) -> None:
    with stopped_job(tmp_path, n_ranks) as (job, pid):
        lock = tmp_path / layout.LOCK
        own = {"pid": os.getpid(), "started": REAL.processes.started(os.getpid()), "nonce": "ffff"}
        taken_over = {**json.loads(lock.read_text(encoding="utf-8")), **own}
        lock.write_text(json.dumps(taken_over), encoding="utf-8")
        os.kill(pid, signal.SIGCONT)
        _, err = job.communicate(timeout=LIMIT_S)
    assert job.returncode != 0
    assert "LockLostError" in err
    assert f"process {os.getpid()}" in err
    assert hc.latest_checkpoint(tmp_path) == tmp_path / layout.step_dirname(1)
    assert leftovers(tmp_path) == []
    assert json.loads(lock.read_text(encoding="utf-8")) == taken_over
