"""Horovod's example for Keras, whose model is not built, is killed and resumed with one line changed.

Its own text is taken too if ``HPCCKPT_HOROVOD_EXAMPLE`` names a copy of Horovod's
``examples/tensorflow2/tensorflow2_keras_mnist.py``.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.support.horovod_jobs import ENV, HERE, TIMEOUT_S
from tests.support.mpi.launch import mpirun

OWN, ORIGINAL = str(HERE / "published_example.py"), os.environ.get("HPCCKPT_HOROVOD_EXAMPLE", "")
RANKS = (2, 3, 1)


def told_by(place: Path, rank: int) -> list[dict[str, Any]]:
    path = place / f"told-{rank}.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize(
    "program",
    [OWN, pytest.param(ORIGINAL, marks=pytest.mark.skipif(not ORIGINAL, reason="HPCCKPT_HOROVOD_EXAMPLE is not set"))],
    ids=["own", "original"],
)
def test_the_first_loss_after_each_resume_is_that_of_the_save(program: str, tmp_path: Path) -> None:
    for n_ranks in RANKS:
        ended = mpirun(n_ranks, str(HERE / "job_example.py"), str(tmp_path), program, timeout_s=TIMEOUT_S, **ENV)
        assert "tensors broadcast" in ended.err or "tensors restored" in ended.err, f"{ended.out}\n{ended.err}"
    for rank in range(max(RANKS)):
        own = told_by(tmp_path, rank)
        begun = [each for each in own if "begun" in each]
        assert [each["size"] for each in begun] == [n_ranks for n_ranks in RANKS if rank < n_ranks]
        for each in begun:
            if each["size"] == RANKS[0]:
                assert each["begun"] == 0
                continue
            before = RANKS[RANKS.index(each["size"]) - 1]
            saved = [one for one in told_by(tmp_path, 0) if one.get("saved") == each["begun"] and one["size"] == before]
            assert [one["loss"] for one in saved] == [each["loss"]]
