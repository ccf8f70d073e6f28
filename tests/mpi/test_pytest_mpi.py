"""A test that fails on one rank ends the whole pytest job instead of leaving the others waiting."""

from __future__ import annotations

import time

from mpi_launch import PROGRAMS, mpirun


def test_failing_rank_ends_the_pytest_job() -> None:
    began = time.monotonic()
    case = str(PROGRAMS / "case_failing_rank.py")
    ended = mpirun(2, "-m", "pytest", "--with-mpi", "-p", "no:cacheprovider", "-q", case, timeout_s=60)
    assert ended.code not in {0, 124}, ended
    assert "a rank's own failure" in ended.out + ended.err
    assert time.monotonic() - began < 30
