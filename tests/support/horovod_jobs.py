"""What the jobs of these tests share: they run under mpirun, and each rank tells in a file what it saw."""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.mpi.launch import mpirun
from tests.support.paths import TESTS

HERE = TESTS / "frameworks" / "horovod"
TIMEOUT_S = 280
ENV = {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "", "PYTHONWARNINGS": "ignore"}


def run_job(name: str, n_ranks: int, place: Path, *args: str, code: int = 0, **env: str) -> list[dict[str, Any]]:
    """Run a program of tests/frameworks/horovod; return what its ranks told."""
    ended = mpirun(n_ranks, str(HERE / f"{name}.py"), str(place), *args, timeout_s=TIMEOUT_S, **{**ENV, **env})
    assert ended.code == code, f"{ended.code}\n{ended.out}\n{ended.err}"
    told = [place / f"rank-{rank}.json" for rank in range(n_ranks)]
    return [json.loads(path.read_text(encoding="utf-8")) for path in told if path.exists()]


def tell(rank: int, what: dict[str, Any]) -> None:
    """Tell the test, from a rank of a job."""
    Path(sys.argv[1], f"rank-{rank}.json").write_text(json.dumps(what), encoding="utf-8")


def failure(fn: Callable[[], Any]) -> str:
    """Return the class and the text of what a call raises."""
    try:
        fn()
    except Exception as error:  # noqa: BLE001 - the test looks at it
        return f"{type(error).__name__}: {error}"
    return ""


def weights(model: Any) -> str:
    """Return all weights of a model, to the bit."""
    return "".join(np.asarray(each).tobytes().hex() for each in model.get_weights())


warnings.simplefilter("ignore")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
