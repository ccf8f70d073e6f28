"""Whichever ranks Horovod was given, those are the ranks that restore and save: others are not waited for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.horovod_jobs import run_job

pytestmark = pytest.mark.one_case

Told = list[dict[str, Any]]


@pytest.fixture(scope="module")
def in_sets(tmp_path_factory: pytest.TempPathFactory) -> Told:
    return run_job("job_ranks", 3, tmp_path_factory.mktemp("sets"), "sets")


@pytest.fixture(scope="module")
def in_comm(tmp_path_factory: pytest.TempPathFactory) -> Told:
    return run_job("job_ranks", 3, tmp_path_factory.mktemp("comm"), "comm")


def test_each_process_set_resumes_its_own_model_to_the_bit(in_sets: Told) -> None:
    """Over scratch, which is gone when they resume."""
    assert [told["restored"] for told in in_sets] == [4, 4, 4]
    assert [told["resumed"] for told in in_sets] == [told["straight"] for told in in_sets]
    assert in_sets[1]["resumed"] == in_sets[2]["resumed"] != in_sets[0]["resumed"]


def test_a_process_set_of_others_is_refused_and_so_is_one_that_horovod_does_not_know(in_sets: Told) -> None:
    assert in_sets[0]["foreign"].startswith("OptionError: process_set: rank 0 of Horovod is not in it ([1, 2])")
    assert all("is not known to Horovod" in told["unknown"] for told in in_sets)
    assert in_sets[0]["root"].startswith("OptionError: root_rank: 1 – one of Horovod's ranks [0]")


def test_horovod_must_be_initialized(in_sets: Told) -> None:
    assert all(told["too early"].startswith("CodeError: Horovod is not initialized") for told in in_sets)


def test_in_a_communicator_that_the_program_gave_to_horovod_ranks_are_horovods(in_comm: Told) -> None:
    assert [(told["our rank"], told["our size"]) for told in in_comm] == [(0, 1), (1, 2), (0, 2)]
    assert [told["our rank"] for told in in_comm] == [told["rank"] for told in in_comm]


def test_a_communicator_resumes_its_own_model_to_the_bit_beside_messages_of_mpi4py(in_comm: Told) -> None:
    assert [told["restored"] for told in in_comm] == [4, 4, 4]
    assert [told["resumed"] for told in in_comm] == [told["straight"] for told in in_comm]
    assert in_comm[1]["resumed"] == in_comm[2]["resumed"] != in_comm[0]["resumed"]
    assert [told["total"] for told in in_comm] == [3, 3, 3]


def test_a_state_that_one_rank_cannot_give_back_is_the_same_error_on_all(tmp_path: Path) -> None:
    told = [each["failure"] for each in run_job("job_ranks", 2, tmp_path, "failure")]
    assert told[0] == told[1]
    assert "give back within the epoch: [rank 1] RuntimeError: no way back" in told[0]
