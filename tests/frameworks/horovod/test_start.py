"""`hpcckpt.horovod.start` replaces ``hvd.init()`` where the program, or hpcckpt, also sends messages by MPI."""

from __future__ import annotations

from pathlib import Path

import hpcckpt as hc
from tests.support.horovod_jobs import run_job


def test_it_starts_horovod_on_all_ranks_returns_them_and_mpi_outlives_horovod(tmp_path: Path) -> None:
    told = run_job("job_start", 2, tmp_path)
    assert [rank["horovod's"] for rank in told] == [[0, 2], [1, 2]]
    assert [rank["ours"] for rank in told] == [rank["again"] for rank in told] == [[0, 2], [1, 2]]
    assert [(rank["is over"], rank["total"]) for rank in told] == [(False, 1), (False, 1)]
    assert hc.latest_checkpoint(tmp_path / "run").name == "step-0000000001"
