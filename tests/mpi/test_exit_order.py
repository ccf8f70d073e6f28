"""The end of a program that closes nothing: all ranks finish the same saves, in the same order."""

from __future__ import annotations

from importlib.util import find_spec
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


LATE = """
import sys, threading, numpy as np
where, when, owner = sys.argv[1:]
if owner == "Horovod":
    import horovod.tensorflow as hvd
    hvd.init()
import hpcckpt as hc
from hpcckpt.collective.mpi import MPI, MpiCommunicator
ckpt = hc.Checkpointer(where, peer_timeout_s=20.0)
save = ckpt.save(1, {"w": np.ones(1_000)})
if ckpt.comm.is_root:
    save.result()
    if when == "in a call":
        ckpt.comm.barrier()
    sys.exit()
is_finalizing = threading.Event()
MPI.COMM_SELF.Set_attr(MPI.Comm.Create_keyval(delete_fn=lambda *_: is_finalizing.set()), True)
finalizer = threading.Thread(target=MPI.Finalize)
def wait_for_the_end():
    if owner != "Horovod" and finalizer.ident is None:
        finalizer.start()
    is_finalizing.wait()
if when == "in a call":
    save.result()
    post, take_in, sent = MpiCommunicator._post, MpiCommunicator._take_in, []
    MpiCommunicator._post = lambda *args: (post(*args), sent.append(args))
    MpiCommunicator._take_in = lambda self: (sent and wait_for_the_end(), take_in(self))
    ckpt.comm.barrier()
else:
    (task,) = ckpt._session.queue.background.tasks
    while not task.is_reported:
        ckpt.poll()
    ckpt.comm.mpi.Probe(0)  # root's answer is there
    wait_for_the_end()
while ckpt.comm.is_usable:
    pass
print("saved", save.result().step, flush=True)
"""


@pytest.mark.skipif(find_spec("horovod") is None, reason="Horovod is not installed")
@pytest.mark.parametrize("case", ["in a call, a thread", "between calls, a thread", "in a call, Horovod"])
def test_a_rank_whose_mpi_another_thread_finalizes_gets_its_answers(tmp_path: Path, case: str) -> None:
    ended = mpirun(2, "-c", LATE, str(tmp_path), *case.split(", "))
    assert ended.code == 0, ended.err
    assert "saved 1" in ended.out


FINALIZED = """
import sys, numpy as np, hpcckpt as hc
from mpi4py import MPI
ckpt = hc.Checkpointer(sys.argv[1], peer_timeout_s=20.0)
ckpt.save(1, {"w": np.ones(1_000)}).result()
MPI.Finalize()
try:
    ckpt.save(2, {"w": np.ones(1_000)}).result()
except hc.errors.MpiError as error:
    print(error, flush=True)
"""


def test_a_checkpointer_used_after_mpi_is_finalized_is_a_typed_error(tmp_path: Path) -> None:
    ended = mpirun(2, "-c", FINALIZED, str(tmp_path))
    assert ended.code == 0, ended.err
    assert all(f"[rank {rank}] MPI is finalized and the checkpointer still used" in ended.out for rank in range(2))
