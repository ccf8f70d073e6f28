"""Starts `trainjob` of tests/frameworks/train/run, under mpirun or without, to be killed or asked to stop."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import pytest

from tests.support.mpi.launch import Finished, find_mpirun, mpirun, run_python
from tests.support.paths import TESTS

HERE = TESTS / "frameworks" / "train" / "run"
TIMEOUT_S = 1200.0
KERAS_LOOP = "hpcckpt.train.KerasTrainLoop"
ENV = {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "", "PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1"}

HOROVOD = pytest.param("horovod", marks=[
    pytest.mark.horovod, pytest.mark.skipif(find_spec("horovod") is None, reason="Horovod is not installed"),
])  # fmt: skip
MPI4PY = pytest.param("mpi4py", marks=pytest.mark.skipif(find_spec("mpi4py") is None, reason="mpi4py is not installed"))
KINDS = [HOROVOD, MPI4PY]
needs_mpirun = pytest.mark.skipif(find_mpirun() is None, reason="no mpirun on the PATH")


class Straight(Protocol):
    """What a run without interruption ends with; each kind of run is made once."""

    def __call__(self, kind: str, n_ranks: int, loop: str = KERAS_LOOP) -> dict[str, Any]:
        """Return all bits of it."""


def start(orders: list[dict[str, Any]], n_ranks: int = 1, kill: str = "") -> Finished:
    """Train in processes of their own, one order after another; say how that ended."""
    env = {**ENV, **({"TRAINPIECES_KILL": kill} if kill else {})}
    words = (str(HERE / "trainjob.py"), json.dumps(orders))
    if n_ranks == 1:
        return run_python(*words, timeout_s=TIMEOUT_S, **env)
    return mpirun(n_ranks, *words, timeout_s=TIMEOUT_S, **env)


def train(run: Path, config: Any, n_ranks: int = 1, kill: str = "", resume: str = "auto") -> Finished:
    """Train one configuration in processes of their own; say how that ended."""
    return start([{"run": str(run), "config": config, "resume": resume}], n_ranks, kill)


def completed(ended: Finished) -> Finished:
    """Check that a training came to its end."""
    assert ended.code == 0, f"{ended.code}\n{ended.out}\n{ended.err}"
    return ended


def told_of(ended: Finished, run: Path) -> list[dict[str, Any]]:
    """Return what each rank reported of a run."""
    told = [one for one in completed(ended).lines("TOLD") if one["run"] == str(run)]
    return sorted(told, key=lambda one: int(one["rank"]))
