"""Resuming by Horovod's own recipe goes astray without a word; with our callback it does not."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.horovod_jobs import run_job

pytestmark = pytest.mark.one_case

Told = list[dict[str, Any]]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    return run_job("job_divergence", 2, tmp_path_factory.mktemp("divergence"))


def each(told: Told, run: str, what: str) -> list[Any]:
    return [rank[run][what] for rank in told]


def test_horovods_recipe_takes_its_first_step_with_different_models(told: Told) -> None:
    for text in each(told, "theirs", "first"):
        assert text.startswith("ReplicaMismatchError: 'model/dense/bias' differs from rank 0's on rank 1")


def test_horovods_recipe_does_not_restore_the_learning_rate_of_other_ranks(told: Told) -> None:
    assert each(told, "theirs", "rate") == [0.01, 0.1]


def test_horovods_recipe_ends_with_different_ranks_and_another_result(told: Told) -> None:
    weights = each(told, "theirs", "weights")
    assert weights[0] != weights[1]
    assert told[0]["straight"]["weights"] not in weights
    assert all("differs from rank 0's on rank 1" in text for text in each(told, "theirs", "end"))


def test_ours_begins_with_equal_models_and_the_saved_learning_rate(told: Told) -> None:
    assert each(told, "ours", "first") == ["", ""]
    assert each(told, "ours", "first_rate") == [0.01, 0.01]


def test_ours_ends_on_all_ranks_as_the_straight_run_to_the_bit(told: Told) -> None:
    assert each(told, "straight", "end") == ["", ""]
    assert each(told, "ours", "weights") == each(told, "straight", "weights")


def test_a_loaded_model_trains_with_horovods_optimizer_and_all_of_its_state(told: Told) -> None:
    assert each(told, "loaded", "wrapped by") == ["horovod._keras"] * 2
    assert each(told, "loaded", "first_rate") == [0.01, 0.01]
    assert each(told, "loaded", "weights") == each(told, "straight", "weights")


def test_a_run_without_a_checkpoint_begins_with_one_ranks_state_option_on_all(told: Told) -> None:
    assert [rank["extra"] for rank in told] == [1.0, 1.0]


def test_a_model_with_a_wrapped_legacy_optimizer_is_loaded_with_it(told: Told) -> None:
    legacy_sgd = "keras.src.optimizers.legacy.gradient_descent.SGD"
    assert [rank["legacy"] for rank in told] == [{"is equal": True, "class": legacy_sgd}] * 2


def test_broadcast_state_takes_the_rank_that_it_is_told_to(told: Told) -> None:
    weights = each(told, "broadcast", "weights")
    assert weights[0] == weights[1]
    assert each(told, "broadcast", "progress") == [{"epoch": 11, "best": [0.5, "b"]}] * 2


def test_broadcast_state_refuses_values_that_ranks_call_differently(told: Told) -> None:
    for rank in told:
        assert "this rank has 'progress/epoch of 1' where rank 0 has 'progress/epoch of 0'" in rank["broken names"]


def test_check_equal_names_the_first_tensor_that_differs_and_its_rank_on_all_ranks(told: Told) -> None:
    for rank in told:
        assert rank["broken"].startswith("ReplicaMismatchError: 'model/dense_1/bias' differs from rank 0's on rank 1")
