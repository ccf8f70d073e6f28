"""A process that is killed amid a drain, at any instant: no half copy is ever chosen, and the next job goes on.

This file is also that process: ``test_tiers_kills.py HOME DISKS N_RANKS N_NODES [PHASE RANK ARRIVAL]`` saves steps on
threads as ranks; it kills itself when a rank comes to a phase of step 2, or goes on until somebody else kills it.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpcckpt as hc
from hpcckpt import discovery, layout, phases
from hpcckpt.inspecting import check_step
from hpcckpt.retention import leftovers
from hpcckpt.testing.ranks import run_ranks

AMID_A_DRAIN = ("drain-begun", "copy-piece", "copy-synced", "copy-verified", "drain-published")
PUBLISHING = ("4-manifest", "4-durable", "5-published", "6-parent-synced")
LIMIT_S = 120.0


def state(value: float, rank: int) -> dict[str, Any]:
    return {"w": np.full(40_000, float(value)), "n": hc.PerRank(np.full(3, float(value + rank)))}


@dataclass(frozen=True)
class Job:
    """So many ranks on so many nodes, each with a disk of its own; a run directory behind."""

    home: Path
    disks: Path
    n_ranks: int
    n_nodes: int

    def open(self, comm: Any) -> hc.Checkpointer:
        scratch = self.disks / f"node-{comm.rank * self.n_nodes // self.n_ranks}"
        return hc.Checkpointer(self.home, comm=comm, scratch=scratch, max_to_keep=None)

    def elsewhere(self) -> Job:
        return Job(self.home, self.disks / "elsewhere", self.n_ranks, self.n_nodes)

    def run(self, trap: Trap | None) -> None:
        def body(comm: Any) -> None:
            with self.open(comm) as ckpt:
                ckpt.save(1, state(1, comm.rank)).durable()
                comm.barrier()
                if trap is not None and comm.is_root:
                    trap.set()
                comm.barrier()
                for step in range(2, 3 if trap else 1_000):
                    ckpt.save(step, state(step, comm.rank))

        run_ranks(self.n_ranks, body)

    def restored(self) -> int:
        """Restore as a new job does; return the step, whose values are checked."""

        def body(comm: Any) -> int:
            held = state(0, comm.rank)
            with self.open(comm) as ckpt:
                step = ckpt.restore(held).step
            assert held["w"].tolist() == [float(step)] * 40_000
            assert held["n"].value.tolist() == [step + comm.rank] * 3
            return step

        steps = run_ranks(self.n_ranks, body)
        assert len(set(steps)) == 1
        return steps[0]

    def go_on(self) -> tuple[int, int]:
        """Restore, save the next step, and bring it home; return both."""

        def body(comm: Any) -> tuple[int, int]:
            with self.open(comm) as ckpt:
                step = ckpt.restore(state(0, comm.rank)).step
                saved = ckpt.save(step + 1, state(step + 1, comm.rank)).durable()
            return step, saved.step

        return run_ranks(self.n_ranks, body)[0]

    def home_is_whole(self) -> list[int]:
        there = discovery.step_numbers(self.home)
        assert all(check_step(self.home / layout.step_dirname(step)).is_whole for step in there)
        return there


class Trap:
    """Kills this process when a rank comes to a phase, the first or a later time after it was set."""

    def __init__(self, phase: str, rank: int, arrival: int) -> None:
        self._phase, self._rank, self._left = phase, rank, arrival
        self._is_set = threading.Event()
        self._guard = threading.Lock()
        phases.install_hook(self)

    def set(self) -> None:
        self._is_set.set()

    def __call__(self, phase: str, rank: int) -> None:
        if self._is_set.is_set() and phase == self._phase and (rank == self._rank or phase in AMID_A_DRAIN):
            with self._guard:
                self._left -= 1
                if self._left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)


def _start(job: Job, *trap: str) -> subprocess.Popen[bytes]:
    words = [sys.executable, __file__, str(job.home), str(job.disks), str(job.n_ranks), str(job.n_nodes), *trap]
    return subprocess.Popen(words, env={**os.environ, "PYTHONPATH": str(Path(hc.__file__).parents[1])})


def _check_what_is_left(job: Job) -> None:
    """Check that both tiers have whole steps only, and that jobs here and elsewhere go on from the right ones."""
    there = job.home_is_whole()
    assert job.elsewhere().restored() == there[-1]
    newest = job.restored()
    assert newest >= there[-1]
    assert job.go_on() == (newest, newest + 1)
    assert job.home_is_whole() == list(range(1, newest + 2))
    assert [leftovers(path) for path in (job.home, *job.disks.glob("node-*/*"))] == [[]] * (1 + job.n_nodes)


CASES = [(n_nodes, phase, 0, 1) for n_nodes in (1, 2) for phase in AMID_A_DRAIN]
CASES += [(n_nodes, phase, 0, 2) for n_nodes in (1, 2) for phase in PUBLISHING]  # the first time is that on scratch
CASES += [(2, phase, rank, 1) for phase in PUBLISHING for rank in (0, 2)]


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


def _main(home: str, disks: str, n_ranks: str, n_nodes: str, *trap: str) -> None:
    made = Trap(trap[0], int(trap[1]), int(trap[2])) if trap else None
    Job(Path(home), Path(disks), int(n_ranks), int(n_nodes)).run(made)


if __name__ == "__main__":
    _main(*sys.argv[1:])
