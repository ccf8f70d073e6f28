"""Which differences between the configuration of a run and a new one are harmless."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from hpcckpt.train.config.config_diff import check
from hpcckpt.train.config_errors import TrainConfigError

LOOP = "hpcckpt.train.KerasTrainLoop"


def cycle(rate: float = 0.1, epochs: int = 5) -> dict[str, Any]:
    return {
        "datasets": {"toy_data": {"size": 4}},
        "model": {"ToyModel": {}},
        "optimizer": {"tf.keras.optimizers.Adam": {"learning_rate": rate}},
        "metrics": [{"tf.keras.metrics.MeanAbsoluteError": {}}],
        "train_loop": {LOOP: {"num_epochs": epochs}},
        "checkpoint": {"every_n_batches": None, "batch_norm": "rank0", "max_to_keep": 3},
        "lms": None,
        "distributed": "auto",
        "seed": None,
    }


def changed(change: Callable[[list[dict[str, Any]]], Any]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    before = [cycle(), cycle(0.01)]
    after = copy.deepcopy(before)
    change(after)
    return before, after


HARMLESS: dict[str, Callable[[list[dict[str, Any]]], Any]] = {
    "nothing": lambda new: None,
    "more epochs in the cycle under way": lambda new: new[0]["train_loop"][LOOP].update(num_epochs=9),
    "fewer, but not fewer than are done": lambda new: new[0]["train_loop"][LOOP].update(num_epochs=3),
    "how often is saved": lambda new: new[0]["checkpoint"].update(every_n_batches=7, max_to_keep=1),
    "Large Model Support": lambda new: new[0].update(lms={"memory_budget": "1 GiB"}),
    "how ranks train together": lambda new: new[0].update(distributed="mpi4py"),
    "a cycle that has not begun": lambda new: new[1].update(optimizer={"tf.keras.optimizers.SGD": {}}),
    "one more cycle": lambda new: new.append(cycle()),
    "one less that has not begun": lambda new: new.pop(),
}
HARMFUL: dict[str, tuple[Callable[[list[dict[str, Any]]], Any], str]] = {
    "learning rate": (
        lambda new: new[0]["optimizer"]["tf.keras.optimizers.Adam"].update(learning_rate=0.2),
        "[0].optimizer.tf.keras.optimizers.Adam.learning_rate: 0.1 in the run, 0.2 now",
    ),
    "fewer epochs than are done": (
        lambda new: new[0]["train_loop"][LOOP].update(num_epochs=2),
        f"[0].train_loop.{LOOP}.num_epochs: 5 in the run, 2 now",
    ),
    "another model": (lambda new: new[0].update(model={"Other": {}}), "[0].model.Other: nothing in the run, {} now"),
    "one metric more": (
        lambda new: new[0]["metrics"].append("accuracy"), "[0].metrics[1]: nothing in the run, 'accuracy' now",
    ),
    "seed": (lambda new: new[0].update(seed=1), "[0].seed: None in the run, 1 now"),
    "statistics": (lambda new: new[0]["checkpoint"].update(batch_norm="mean"), "[0].checkpoint.batch_norm: 'rank0'"),
}  # fmt: skip


@pytest.mark.parametrize("change", HARMLESS.values(), ids=HARMLESS.keys())
def test_what_has_no_part_in_what_was_trained_may_differ(change: Any) -> None:
    check(*changed(change), n_begun=1, n_epochs_done=3)


@pytest.mark.parametrize(("change", "text"), HARMFUL.values(), ids=HARMFUL.keys())
def test_what_has_a_part_is_refused_with_both_values(change: Any, text: str) -> None:
    with pytest.raises(TrainConfigError) as caught:
        check(*changed(change), n_begun=1, n_epochs_done=3)
    assert text in str(caught.value)


def test_all_that_differs_is_told_at_once() -> None:
    before, after = changed(lambda new: new[0].update(seed=1, model={"Other": {}}))
    with pytest.raises(TrainConfigError) as caught:
        check(before, after, n_begun=1, n_epochs_done=0)
    assert len(caught.value.problems) == 3


def test_epochs_of_a_cycle_that_another_one_went_on_from_may_not_differ() -> None:
    before, after = changed(HARMLESS["more epochs in the cycle under way"])
    with pytest.raises(TrainConfigError, match="num_epochs"):
        check(before, after, n_begun=2, n_epochs_done=1)


def test_a_number_is_equal_to_itself_however_it_is_written() -> None:
    assert check([cycle(1.0)], [cycle(1)], n_begun=1, n_epochs_done=0) == []


def test_one_is_not_true() -> None:
    before, after = [cycle()], [cycle()]
    before[0]["datasets"]["toy_data"]["size"], after[0]["datasets"]["toy_data"]["size"] = 1, True
    with pytest.raises(TrainConfigError, match="size"):
        check(before, after, n_begun=1, n_epochs_done=0)
