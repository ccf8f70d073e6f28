"""Processes that make different calls, end, or hang: each rank gets the same error, or the job ends with a message."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.mpi.launch import mpirun

JOB = """
import os, signal, sys, threading, time, numpy as np, hpcckpt as hc
from mpi4py import MPI
from hpcckpt import errors
from hpcckpt.testing.faults import Fault, arm
rank = MPI.COMM_WORLD.Get_rank()
state = {"w": np.ones(1000)}
ckpt = hc.Checkpointer(sys.argv[1], peer_timeout_s=8.0)
ckpt.save(1, state).result()
MPI.COMM_WORLD.Barrier()

def said(call, others=(0, 1, 2)):
    try:
        call()
    except errors.HpcckptError as error:
        print(f"<{type(error).__name__} {error.kind}: {error}>", flush=True)
        open(f"{sys.argv[1]}/said-{rank}", "x").close()
        end = time.monotonic() + 30.0
        while time.monotonic() < end and not all(os.path.exists(f"{sys.argv[1]}/said-{other}") for other in others):
            time.sleep(0.01)  # the first rank that ends may end the job, so each waits until all have printed
        os._exit(0)
"""

CALLS = {
    "save on rank 0 alone": "said(lambda: (ckpt.save(2, state).result() if rank == 0 else None, ckpt.close()))",
    "close on one rank": "said(lambda: ckpt.close() if rank == 1 else (ckpt.save(2, state).result(), ckpt.close()))",
    "restore of other steps": "said(lambda: ckpt.restore(state, step=1 if rank == 2 else None))",
}


def kinds_of(out: str) -> list[tuple[str, str]]:
    return re.findall(r"<(\w+) [\w-]+: ([^>]*)>", out)


pytestmark = pytest.mark.slow  # each waits for time-outs of processes; faults/test_misuse.py is the quick one


@pytest.mark.parametrize("what", CALLS)
def test_processes_in_different_calls_get_the_same_error(tmp_path: Path, what: str) -> None:
    ended = mpirun(3, "-c", JOB + CALLS[what], str(tmp_path))
    found = kinds_of(ended.out)
    assert len(found) == 3, ended
    assert set(found) == {("CollectiveMisuseError", found[0][1])}
    assert "all ranks must make the same calls" in found[0][1]


ENDS = {
    "sys.exit": "sys.exit(0)",
    "sys.exit, the checkpointer forgotten": "import gc; del ckpt; gc.collect(); sys.exit(0)",
    "an uncaught exception": "raise ValueError('own mistake')",
}


@pytest.mark.parametrize("how", ENDS)
def test_a_process_that_ends_is_an_error_in_the_calls_of_the_others(tmp_path: Path, how: str) -> None:
    job = f"{JOB}\nif rank == 1:\n    {ENDS[how]}\nsaid(lambda: (ckpt.save(2, state).result(), ckpt.close()), (0, 2))"
    ended = mpirun(3, "-c", job, str(tmp_path))
    found = kinds_of(ended.out)
    assert found, ended
    assert {name for name, _ in found} == {"CollectiveMisuseError"}
    assert all("rank 1 ended" in text for _, text in found)


def test_a_process_that_is_blocked_elsewhere_ends_the_job_with_a_message(tmp_path: Path) -> None:
    job = f"{JOB}\nif rank == 1:\n    signal.pause()\nckpt.restore(state)"
    ended = mpirun(3, "-c", job, str(tmp_path))
    assert ended.code != 0
    assert re.search(r"rank 0 waited 8 s \(peer_timeout_s\): .*rank 1 has not entered a call of hpcckpt", ended.err)
    assert "in restore() for" in ended.err


STOP = """
pid = os.fork() if rank == 1 else 1
if pid == 0:
    time.sleep({s})  # the stop itself: nothing waits for its end but the rank that is stopped
    os.kill(os.getppid(), signal.SIGCONT)
    os._exit(0)
"""


def test_a_process_that_is_stopped_for_a_while_is_no_error(tmp_path: Path) -> None:
    job = (
        JOB
        + STOP.format(s=5.0)
        + "if rank == 1:\n    os.kill(os.getpid(), signal.SIGSTOP)\n"
        + "said(lambda: (ckpt.save(2, state).result(), ckpt.restore(state), ckpt.close(), print('<all well: well>')))"
    )
    ended = mpirun(3, "-c", job, str(tmp_path))
    assert ended.out.count("<all well: well>") == 3, ended
    assert ended.code == 0


def test_a_process_that_is_stopped_in_a_restore_is_named_and_all_get_the_same_error(tmp_path: Path) -> None:
    job = JOB + STOP.format(s=15.0) + "arm(Fault('9-restore', 'stop', rank=1))\n" + "said(lambda: ckpt.restore(state))"
    ended = mpirun(3, "-c", job, str(tmp_path))
    found = kinds_of(ended.out)
    assert {name for name, _ in found} == {"PeerTimeoutError"}, ended
    assert len({text for _, text in found}) == 1
    assert re.search(r"\[rank [02]\] in restore\(\) .*rank 1 is in restore\(\) \(reads .* bytes so far\)", ended.err)
