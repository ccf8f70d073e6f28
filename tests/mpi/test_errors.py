"""A rank that fails is the same typed error on every rank, soon; no rank is left waiting."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

import hpcckpt as hc
from hpcckpt.format import layout
from hpcckpt.rundir.discovery import step_numbers
from tests.support.listing import listed
from tests.support.mpi.launch import PROGRAMS, mpirun


@pytest.mark.parametrize(("n_ranks", "saving"), [(1, "at-once"), (2, "at-once"), (2, "background"), (3, "background")])
def test_an_error_in_any_phase_of_one_rank_is_the_same_on_all(tmp_path: Path, n_ranks: int, saving: str) -> None:
    ended = mpirun(n_ranks, str(PROGRAMS / "job_errors.py"), str(tmp_path), saving)
    assert ended.code == 0, ended.err
    outcomes = ended.lines("outcome")
    kinds, phases, overwrites = 2, 11, 2
    assert len(outcomes) == kinds * phases * overwrites + 1
    for outcome in outcomes:
        assert len(set(outcome["texts"])) == 1, outcome
        assert outcome["texts"][0].split()[2] == "True", outcome
    for outcome in outcomes[:-1]:
        named = {"no-space": "NoSpaceError no-space", "bug": "CollectiveError collective"}[outcome["kind"]]
        assert outcome["texts"][0].startswith(named), outcome
        assert f"[rank {outcome['rank']}]" in outcome["texts"][0], outcome
        assert outcome["kept"], outcome
        assert outcome["intact"], outcome
        assert outcome["left"] == [], outcome
    assert "no memory for a copy" in outcomes[-1]["texts"][0], outcomes[-1]


def test_a_rank_that_raises_elsewhere_ends_the_job(tmp_path: Path) -> None:
    ended = mpirun(2, str(PROGRAMS / "job_uncaught.py"), str(tmp_path))
    assert "the program's own mistake" in ended.err
    assert ended.code != 0, ended.err
    assert "step-0000000001" in os.listdir(tmp_path)


LEFT = """
import sys, threading, numpy as np, hpcckpt as hc
from hpcckpt.core import failpoints
from mpi4py import MPI
rank = MPI.COMM_WORLD.rank
ckpt = hc.Checkpointer(sys.argv[1])
ckpt.save(1, {"w": np.full(100_000, 1.0)}).result()
if rank == 1 and sys.argv[2] == "raise":  # storage that is slower than others wait for a rank of which nothing is known
    failpoints.install_hook(lambda phase, _: phase == "2-write" and threading.Event().wait(4))
ckpt.save(2, {"w": np.full(100_000, 2.0)})
if sys.argv[2] == "exit":
    sys.exit(0)
if sys.argv[2] == "forget":
    del ckpt
if sys.argv[2] == "raise" or (sys.argv[2] == "raise on one" and rank == 1):
    raise ValueError("the program's own mistake")
"""


@pytest.mark.parametrize("way", ["end", "exit", "forget", "raise", "raise on one"])
def test_a_job_that_ends_without_closing_leaves_the_step_whole_or_absent(tmp_path: Path, way: str) -> None:
    """Whole, if all ranks end by themselves, or all by an exception."""
    ended = mpirun(2, "-c", LEFT, str(tmp_path), way)
    is_mistake = way.startswith("raise")
    assert (ended.code != 0) == is_mistake, ended.err
    assert ("own mistake" in ended.err) == is_mistake
    steps = step_numbers(tmp_path)
    assert steps in ([[1], [1, 2]] if way == "raise on one" else [[1, 2]])
    assert hc.load(tmp_path)["w"].tolist() == [float(steps[-1])] * 100_000
    assert is_mistake or listed(tmp_path) == [layout.step_dirname(1), layout.step_dirname(2)]


ALONE = """
import sys, hpcckpt as hc
from mpi4py import MPI
if MPI.COMM_WORLD.rank == 0:
    hc.Checkpointer(sys.argv[1], peer_timeout_s=1)
MPI.COMM_WORLD.Barrier()
"""


def test_a_job_whose_ranks_do_not_all_make_a_checkpointer_is_ended_with_the_reason(tmp_path: Path) -> None:
    ended = mpirun(2, "-c", ALONE, str(tmp_path))
    assert ended.code != 0
    assert "not all ranks made a checkpointer; the job is ended" in ended.err
    assert "Traceback" not in ended.err


SILENT = """
import os, signal, sys, numpy as np, hpcckpt as hc
from mpi4py import MPI
from hpcckpt.testing.faults import Fault, arm
world = MPI.COMM_WORLD
ckpt = hc.Checkpointer(sys.argv[1], peer_timeout_s=5.0)
ckpt.save(1, {"w": np.ones(100_000)}).result()
world.Barrier()
arm(Fault("2-write", "stop", rank=int(sys.argv[2])))
ckpt.save(2, {"w": np.ones(100_000)}).result()
"""


@pytest.mark.parametrize("silent", [0, 2])
def test_a_rank_that_falls_silent_is_named_and_the_job_ends(tmp_path: Path, silent: int) -> None:
    """As a node that hangs: it neither answers nor dies."""
    ended = mpirun(3, "-c", SILENT, str(tmp_path), str(silent))
    assert ended.code != 0, ended
    assert f"save step 2: no word from rank {silent} for 5 s; the job is ended" in ended.err
    assert re.search(rf"\(rank \d waits for it; rank {silent} ", ended.err), ended.err
    assert step_numbers(tmp_path) == [1]
