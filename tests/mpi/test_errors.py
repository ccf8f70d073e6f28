"""A rank that fails is the same typed error on every rank, soon; nobody is left waiting."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from mpi_launch import PROGRAMS, mpirun

SOON_S = 20.0


@pytest.mark.parametrize("saving", ["background", "at-once"])
@pytest.mark.parametrize("n_ranks", [1, 2, 3])
def test_an_error_in_any_phase_of_one_rank_is_the_same_on_all(tmp_path: Path, n_ranks: int, saving: str) -> None:
    ended = mpirun(n_ranks, str(PROGRAMS / "job_errors.py"), str(tmp_path), saving)
    assert ended.code == 0, ended.err
    outcomes = ended.lines("outcome")
    assert len(outcomes) == 2 * 10 * 2 + 1
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


def test_a_rank_that_raises_elsewhere_ends_the_job(tmp_path: Path) -> None:
    ended = mpirun(2, str(PROGRAMS / "job_uncaught.py"), str(tmp_path), timeout_s=SOON_S)
    assert "the program's own mistake" in ended.err
    assert ended.code not in {0, 124}, ended.err
    assert "step-0000000001" in os.listdir(tmp_path)
