"""A process that is killed during a drain, at any instant: no half copy is ever chosen, and the next job goes on.

This file is also that process: ``test_tiers_kills.py HOME DISKS N_RANKS N_NODES [PHASE RANK ARRIVAL]`` saves steps on
threads as ranks; it kills itself when a rank comes to a phase of step 2, or goes on until somebody else kills it.
"""

from __future__ import annotations

import functools
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import hpcckpt as hc
from hpcckpt import tiers
from hpcckpt.core import failpoints
from hpcckpt.format import layout
from hpcckpt.rundir import discovery
from hpcckpt.rundir.retention import leftovers
from hpcckpt.testing.ranks import run_ranks
from hpcckpt.tools.inspect import check_step
from tests.support.programs import environment
from tests.support.two_tiers import Trap, state

PUBLISHING = ("4-manifest", "4-durable", "5-published", "6-parent-synced")
LIMIT_S = 120.0
LENGTH = 40_000


@dataclass(frozen=True)
class Job:
    """Ranks on nodes, each node with its own disk, and a run directory."""

    home: Path
    disks: Path
    n_ranks: int
    n_nodes: int

    def open(self, comm: Any) -> hc.Checkpointer:
        scratch = self.disks / f"node-{comm.rank * self.n_nodes // self.n_ranks}"
        return hc.Checkpointer(self.home, comm=comm, scratch=scratch, max_to_keep=None)

    def elsewhere(self) -> Job:
        return Job(self.home, self.disks / "elsewhere", self.n_ranks, self.n_nodes)

    def run(self, set_trap: Callable[[], None] | None) -> None:
        def body(comm: Any) -> None:
            with self.open(comm) as ckpt:
                ckpt.save(1, state(1, comm.rank, LENGTH)).durable()
                comm.barrier()
                if set_trap is not None and comm.is_root:
                    set_trap()
                comm.barrier()
                for step in range(2, 3 if set_trap else 1_000):
                    ckpt.save(step, state(step, comm.rank, LENGTH))

        run_ranks(self.n_ranks, body)

    def restored(self) -> int:
        """Restore as a new job does; return the step, whose values are checked."""

        def body(comm: Any) -> int:
            held = state(0, comm.rank, LENGTH)
            with self.open(comm) as ckpt:
                step = ckpt.restore(held).step
            assert held["w"].tolist() == [float(step)] * LENGTH
            assert held["n"].value.tolist() == [step + comm.rank] * 3
            return step

        steps = run_ranks(self.n_ranks, body)
        assert len(set(steps)) == 1
        return steps[0]

    def go_on(self) -> tuple[int, int]:
        """Restore, save the next step, and bring it home; return both."""

        def body(comm: Any) -> tuple[int, int]:
            with self.open(comm) as ckpt:
                step = ckpt.restore(state(0, comm.rank, LENGTH)).step
                saved = ckpt.save(step + 1, state(step + 1, comm.rank, LENGTH)).durable()
            return step, saved.step

        return run_ranks(self.n_ranks, body)[0]

    def home_is_whole(self) -> list[int]:
        there = discovery.step_numbers(self.home)
        assert all(check_step(self.home / layout.step_dirname(step)).is_whole for step in there)
        return there


def _start(job: Job, *trap: str) -> subprocess.Popen[bytes]:
    words = [sys.executable, __file__, str(job.home), str(job.disks), str(job.n_ranks), str(job.n_nodes), *trap]
    return subprocess.Popen(words, env=environment())


def _check_what_is_left(job: Job) -> None:
    """Check that both tiers have whole steps only, and that jobs here and elsewhere go on from the right ones."""
    there = job.home_is_whole()
    assert job.elsewhere().restored() == there[-1]
    newest = job.restored()
    assert newest >= there[-1]
    assert job.go_on() == (newest, newest + 1)
    assert job.home_is_whole() == list(range(1, newest + 2))
    assert [leftovers(path) for path in (job.home, *job.disks.glob("node-*/*"))] == [[]] * (1 + job.n_nodes)


CASES = [(2, phase, 0, 1) for phase in tiers.PHASES]
CASES += [(1, phase, 0, 2) for phase in PUBLISHING]  # the first time is that on scratch
CASES += [(2, phase, 2, 1) for phase in PUBLISHING]


@pytest.mark.parametrize(("n_nodes", "phase", "rank", "arrival"), CASES)
def test_killed_at_a_phase_the_next_job_goes_on_from_a_whole_step(tmp_path, n_nodes, phase, rank, arrival):
    job = Job(tmp_path / "run", tmp_path / "disks", 3, n_nodes)
    process = _start(job, phase, str(rank), str(arrival))
    assert process.wait(LIMIT_S) == -signal.SIGKILL
    _check_what_is_left(job)


@pytest.mark.parametrize("n_nodes", [1, 3])
@pytest.mark.parametrize("seed", range(3))
def test_killed_at_any_instant_the_next_job_goes_on_from_a_whole_step(tmp_path, n_nodes, seed):
    job = Job(tmp_path / "run", tmp_path / "disks", 3, n_nodes)
    process = _start(job)
    limit = time.monotonic() + LIMIT_S
    while not discovery.step_numbers(job.home) and time.monotonic() < limit:
        time.sleep(0.01)
    time.sleep(random.Random(seed).uniform(0.0, 0.5))  # the instant
    process.kill()
    assert process.wait(LIMIT_S) == -signal.SIGKILL
    _check_what_is_left(job)


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _main(home: str, disks: str, n_ranks: str, n_nodes: str, *trap: str) -> None:
    set_trap = None
    if trap:
        made, (phase, rank, arrival) = Trap(), trap
        failpoints.install_hook(made)
        set_trap = functools.partial(made.set, phase, _kill, int(rank), int(arrival))
    Job(Path(home), Path(disks), int(n_ranks), int(n_nodes)).run(set_trap)


if __name__ == "__main__":
    _main(*sys.argv[1:])
