"""The end of a program that closes nothing: all ranks finish the same saves, in the same order."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcckpt.rundir.discovery import step_numbers
from tests.support.mpi.launch import mpirun

MANY = """
import random, sys, numpy as np, hpcckpt as hc
from mpi4py import MPI
ballast = [bytearray(random.randrange(1, 5_000)) for _ in range(2_000)]
kept = [hc.Checkpointer(f"{sys.argv[1]}/{number}", peer_timeout_s=120.0) for number in range(6)]
for ckpt in kept:
    ckpt.save(1, {"w": np.ones(1_000)})
    if sys.argv[2] == "forgotten by one" and MPI.COMM_WORLD.rank == 1:
        kept = None
"""


@pytest.mark.parametrize("way", ["kept", "forgotten by one"])
def test_unclosed_checkpointers_are_finished_in_the_same_order_on_all_ranks(tmp_path: Path, way: str) -> None:
    ended = mpirun(2, "-c", MANY, str(tmp_path), way)
    assert ended.code == 0, ended.err
    assert [step_numbers(tmp_path / str(number)) for number in range(6)] == [[1]] * 6


FAILED = """
import gc, sys, numpy as np, hpcckpt as hc
from mpi4py import MPI
from hpcckpt.core import failpoints as phases
world = MPI.COMM_WORLD
left = [world.rank == 0]
def fail(phase, rank):
    if phase == "copy-synced" and left[0]:
        left[0] = False
        raise OSError(5, "Input/output error")
phases.install_hook(fail)
ckpt = hc.Checkpointer(f"{sys.argv[1]}/run", scratch=f"{sys.argv[1]}/scratch", peer_timeout_s=120.0)
ckpt.save(1, {"w": np.ones(100_000)})
ckpt.wait()
if world.rank == 0:
    while ckpt.is_draining:
        ckpt.poll()
else:
    (drain,) = ckpt._session.scratch_tier.drains.background.tasks
    drain.local.join()
    ckpt.poll()  # tells root that its part is done, and hears nothing yet
    assert ckpt.is_draining
world.Barrier()
if sys.argv[2] == "forgotten":
    del ckpt
    gc.collect()
"""


@pytest.mark.parametrize("way", ["kept", "forgotten"])
def test_a_drain_of_whose_failure_only_root_has_heard_is_tried_again_by_all_ranks(tmp_path: Path, way: str) -> None:
    ended = mpirun(2, "-c", FAILED, str(tmp_path), way)
    assert ended.code == 0, ended.err
    assert ended.err.count("drain step 1 from") == 1, ended.err
    assert step_numbers(tmp_path / "run") == [1]
