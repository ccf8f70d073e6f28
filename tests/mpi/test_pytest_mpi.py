"""A test that fails on one rank ends its pytest job instead of leaving the others waiting; a job that hangs fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.mpi.launch import PROGRAMS, TIMED_OUT, mpirun


def test_failing_rank_ends_the_pytest_job() -> None:
    case = str(PROGRAMS / "case_failing_rank.py")
    ended = mpirun(2, "-m", "pytest", "--with-mpi", "-p", "no:cacheprovider", "-q", case)
    assert ended.code != 0, ended
    assert "a rank's own failure" in ended.out + ended.err


def test_a_job_that_the_launcher_ended_at_its_time_limit_fails_its_test(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher = tmp_path / "mpirun"
    launcher.write_text(f"#!/bin/sh\nexit {TIMED_OUT}\n", encoding="utf-8")
    launcher.chmod(0o755)
    monkeypatch.setenv("MPIRUN", str(launcher))
    with pytest.raises(AssertionError, match="hung"):
        mpirun(2, "-c", "pass")


def test_a_job_that_hangs_is_ended_and_fails_its_test() -> None:
    with pytest.raises(AssertionError, match="hung"):
        mpirun(2, "-c", "import threading; threading.Event().wait()", timeout_s=1)
