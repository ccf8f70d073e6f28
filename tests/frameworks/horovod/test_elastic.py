"""Elastic states of Horovod whose commits reach the disk: they outlive the job, the learning rate with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.horovod_jobs import ENV, HERE, TIMEOUT_S, mpirun, run_job

pytestmark = pytest.mark.one_case

Told = list[dict[str, Any]]
STEPS = [f"step-{number:010}" for number in (3, 6, 9, 12)]


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Told:
    return run_job("job_elastic", 2, tmp_path_factory.mktemp("straight"), "straight")


@pytest.fixture(scope="module")
def resumed(tmp_path_factory: pytest.TempPathFactory) -> Told:
    place = tmp_path_factory.mktemp("resumed")
    killed = mpirun(2, str(HERE / "job_elastic.py"), str(place), "kill", "8", timeout_s=TIMEOUT_S, **ENV)
    assert killed.code != 0
    assert not list(place.glob("rank-*.json"))
    return run_job("job_elastic", 2, place, "loud")


def test_every_nth_commit_is_durable(straight: Told) -> None:
    assert [told["steps"] for told in straight] == [STEPS, STEPS]
    assert [(told["commits"], told["batch"], told["restored"]) for told in straight] == [(12, 12, None)] * 2


def test_a_killed_job_resumes_from_its_newest_durable_commit_and_ends_the_same(straight: Told, resumed: Told) -> None:
    assert [told["restored"] for told in resumed] == [6, 6]
    assert [told["began"] for told in resumed] == [[6], [6]]
    assert [told["weights"] for told in resumed] == [told["weights"] for told in straight]
    assert [(told["commits"], told["notes"], told["rate"]) for told in resumed] == [(12, {"a": 1}, 0.01)] * 2
    assert [told["steps"] for told in resumed] == [STEPS, STEPS]


def test_after_a_failure_within_a_job_all_ranks_go_back_to_the_last_commit_in_memory(
    straight: Told, tmp_path: Path
) -> None:
    told = run_job("job_elastic", 2, tmp_path, "ill")
    assert [rank["began"] for rank in told] == [[0, 5], [0, 5]]
    assert [rank["restored"] for rank in told] == [None, None]
    assert [rank["rate"] for rank in told] == [0.01, 0.01]
    assert [rank["weights"] for rank in told] == [rank["weights"] for rank in straight]


def test_with_scratch_a_durable_commit_is_drained_when_the_state_is_closed(straight: Told) -> None:
    assert [told["bare steps"] for told in straight] == [["step-0000000005"]] * 2


def test_a_state_of_bare_variables_is_numbered_by_an_attribute(straight: Told) -> None:
    assert [told["variables"] for told in straight] == [[6.0, 5.0], [6.0, 5.0]]
