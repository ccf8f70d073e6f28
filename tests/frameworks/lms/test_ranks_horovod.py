"""Two ranks of Horovod: one plan, weights as without LMS, checkpoints; ranks that differ raise the same error."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from hpcckpt.collective.communicator import launched_size
from tests.support.mpi.launch import find_mpirun, mpirun

HERE = Path(__file__).parent
WHY_NOT = (
    "Horovod is not installed"
    if find_spec("horovod") is None
    else "these tests start MPI jobs of their own; run pytest without mpirun"
    if launched_size() not in {None, 1}
    else ""
    if find_mpirun()
    else "no mpirun on the PATH"
)
pytestmark = [
    pytest.mark.one_case,
    pytest.mark.horovod,
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT),
]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    place = tmp_path_factory.mktemp("horovod")
    ended = mpirun(2, str(HERE / "job_horovod_lms.py"), str(place), timeout_s=280)
    assert ended.code == 0, f"{ended.out}\n{ended.err}"
    return [json.loads((place / f"rank-{rank}.json").read_text(encoding="utf-8")) for rank in range(2)]


def test_both_ranks_have_the_same_plan(told: Any) -> None:
    assert told[0]["digest"] == told[1]["digest"]
    assert told[0]["swaps"] > 0


def test_losses_and_weights_of_each_rank_are_those_without_lms(told: Any) -> None:
    assert [each["with"] for each in told] == [each["without"] for each in told]


def test_a_budget_is_planned_from_what_rank_0_measured_and_changes_no_weight(told: Any) -> None:
    assert [each["within"] for each in told] == [each["without"] for each in told]
    assert {each["verified"] for each in told} <= {True, False}


def test_collectives_are_not_swapped(told: Any) -> None:
    assert [each["collectives"] for each in told] == [[], []]


def test_ranks_with_other_options_are_refused_alike_before_the_first_step(told: Any) -> None:
    assert told[0]["refused"] == told[1]["refused"]
    assert told[0]["refused"].startswith("the plan of rank 1 is not that of rank 0 (")


def test_nothing_is_held_after_training(told: Any) -> None:
    assert [each["live"] for each in told] == [0, 0]


def test_checkpoints_of_the_ranks_hold_the_whole_model(told: Any) -> None:
    assert sum(name.startswith("model/") for name in told[0]["names"]) == told[0]["n_weights"]
