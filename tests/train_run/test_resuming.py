"""Where a run begins: each of --resume's words as a user would expect it, and what may have changed meanwhile."""

from __future__ import annotations

import csv
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trainpieces as pieces

import hpcckpt as hc
from hpcckpt.discovery import step_numbers
from hpcckpt.errors import OptionError, StepNotFoundError
from hpcckpt.train import resuming
from hpcckpt.train.problems import ConfigError

Run = Callable[..., list[Any]]


def epochs(history: Any) -> list[int]:
    return list(history.epoch)


def rows(tmp_path: Path) -> list[tuple[str, str]]:
    return [
        (row["cycle"], row["epoch"])
        for row in csv.DictReader((tmp_path / "run" / "metrics.csv").read_text().splitlines())
    ]


def steps(tmp_path: Path, cycle: int = 1) -> list[int]:
    return step_numbers(tmp_path / "run" / f"cycle-{cycle}")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("auto", ("auto", None, 0)), ("latest", ("latest", None, 0)), ("best", ("best", None, 0)),
        ("never", ("never", None, 0)), ("500", ("step", None, 500)), (500, ("step", None, 500)),
        ("2:0", ("step", 2, 0)),
    ],
)  # fmt: skip
def test_resume_is_a_word_or_a_step_or_a_cycle_and_a_step(text: Any, wanted: tuple[str, int | None, int]) -> None:
    found = resuming.parse(text)
    assert (found.mode, found.cycle, found.step) == wanted


@pytest.mark.parametrize("text", ["newest", "", "-1", "0:5", "1:2:3", True, None, 1.5])
def test_resume_that_is_anything_else_is_refused(text: Any) -> None:
    with pytest.raises(OptionError, match="resume: "):
        resuming.parse(text)


# -- auto ----------------------------------------------------------------------------------------------


def test_auto_begins_where_nothing_is_and_trains_nothing_where_all_is_complete(run: Run, tmp_path: Path) -> None:
    first = run(pieces.two_cycles())
    before = pieces.ends_with(tmp_path / "run")
    again = run(pieces.two_cycles())
    assert [each.history for each in again] == [each.history for each in first]
    assert pieces.ends_with(tmp_path / "run") == before


def test_a_complete_run_that_is_given_more_epochs_trains_those(run: Run, tmp_path: Path) -> None:
    (first,) = run(pieces.config(train_loop=pieces.loop(epochs=2)))
    (more,) = run(pieces.config(train_loop=pieces.loop(epochs=4)))
    assert epochs(more) == [0, 1, 2, 3]
    assert more.history["loss"][:2] == first.history["loss"]
    assert rows(tmp_path) == [("1", str(epoch)) for epoch in (1, 2, 3, 4)]
    assert pieces.log(tmp_path / "run", "go on")[0]["changes"] == [
        "[0].train_loop.hpcckpt.train.KerasTrainLoop.num_epochs: 2 in the run, 4 now"
    ]


def test_more_epochs_give_what_a_run_with_so_many_from_the_start_gives_to_the_bit(run: Run, tmp_path: Path) -> None:
    from hpcckpt.train import Environment

    few, many = (pieces.config(seed=5, train_loop=pieces.loop(epochs=n)) for n in (2, 4))
    run(few)
    run(many)
    Environment(tmp_path / "straight", verbose=0).run(many)
    assert pieces.ends_with(tmp_path / "run", 1) == pieces.ends_with(tmp_path / "straight", 1)


def test_a_complete_run_that_is_given_another_cycle_trains_that(run: Run, tmp_path: Path) -> None:
    run(pieces.config())
    _, second = run([*pieces.config(), {"train_loop": pieces.loop(epochs=1)}])
    assert epochs(second) == [0]
    assert rows(tmp_path) == [("1", "1"), ("1", "2"), ("2", "1")]


def test_a_cycle_that_another_one_went_on_from_is_not_trained_again_when_its_checkpoints_are_gone(
    run: Run, tmp_path: Path
) -> None:
    first = run(pieces.two_cycles())
    shutil.rmtree(tmp_path / "run" / "cycle-1")
    again = run(pieces.two_cycles())
    assert [each.history for each in again] == [each.history for each in first]
    assert not (tmp_path / "run" / "cycle-1").exists()


def test_a_run_directory_of_another_configuration_is_refused_with_what_differs(run: Run, tmp_path: Path) -> None:
    run(pieces.config())
    before = pieces.ends_with(tmp_path / "run", 1)
    other = pieces.config(optimizer={"tf.keras.optimizers.Adam": {"learning_rate": 0.5}}, loss="mae")
    with pytest.raises(ConfigError) as caught:
        run(other)
    assert [problem.where for problem in caught.value.problems] == [
        "[0].loss", "[0].optimizer.tf.keras.optimizers.Adam.learning_rate",
    ]  # fmt: skip
    assert pieces.ends_with(tmp_path / "run", 1) == before


# -- never ---------------------------------------------------------------------------------------------


def test_never_begins_where_nothing_is(run: Run) -> None:
    assert epochs(run(pieces.config(), "never")[0]) == [0, 1]


def test_never_refuses_to_overwrite_a_run(run: Run, tmp_path: Path) -> None:
    run(pieces.config())
    before = pieces.ends_with(tmp_path / "run", 1)
    with pytest.raises(OptionError, match=r"there is a run already in .*run \(cycle 1, step 16\)"):
        run(pieces.config(), "never")
    assert pieces.ends_with(tmp_path / "run", 1) == before


def test_never_with_overwrite_moves_the_run_aside_and_deletes_nothing(run: Run, tmp_path: Path) -> None:
    run(pieces.config())
    (history,) = run(pieces.config(loss="mae"), "never", overwrite=True)
    assert epochs(history) == [0, 1]
    assert rows(tmp_path) == [("1", "1"), ("1", "2")]
    (old,) = (tmp_path / "run").glob(".aside-cycle-1-*")
    assert hc.latest_checkpoint(old) == old / "step-0000000016"
    assert len(list((tmp_path / "run").glob(".aside-2*/metrics.csv"))) == 1


# -- latest, best, a step ------------------------------------------------------------------------------


@pytest.mark.parametrize("resume", ["latest", "best", "16"])
def test_going_on_where_nothing_is_says_so_and_makes_nothing(resume: str, run: Run, tmp_path: Path) -> None:
    with pytest.raises(StepNotFoundError, match="holds no run"):
        run(pieces.config(), resume)
    assert not (tmp_path / "run").exists()


def test_latest_goes_on(run: Run) -> None:
    run(pieces.config())
    assert epochs(run(pieces.config(train_loop=pieces.loop(epochs=3)), "latest")[0]) == [0, 1, 2]


def test_a_step_is_gone_back_to_and_newer_ones_are_moved_aside(run: Run, tmp_path: Path) -> None:
    first = run(pieces.two_cycles())
    again = run(pieces.two_cycles(), "1:8")
    assert pieces.log(tmp_path / "run", "resumed")[-1]["step"] == 8
    assert [each.history for each in again] == [each.history for each in first]
    assert rows(tmp_path) == [("1", "1"), ("1", "2"), ("1", "3"), ("2", "1"), ("2", "2")]
    assert list((tmp_path / "run").glob(".aside-cycle-2-*"))
    aside = {
        path.name[: len(".aside-step-0000000024")] for path in (tmp_path / "run" / "cycle-1").glob(".aside-step-*")
    }
    assert aside == {f".aside-step-{step:010d}" for step in (9, 12, 15, 16, 18, 21, 24)}


def test_a_step_that_two_cycles_have_is_asked_about(run: Run) -> None:
    run(pieces.two_cycles())
    with pytest.raises(OptionError, match="say 1:8 or 2:8"):
        run(pieces.two_cycles(), "8")


def test_a_step_that_is_not_there_names_those_that_are(run: Run) -> None:
    run(pieces.config())
    with pytest.raises(StepNotFoundError, match=r"newest of each cycle: .*1:15, 1:16"):
        run(pieces.config(), "7")


def test_best_goes_back_to_the_best_checkpoint_of_the_newest_cycle(run: Run, tmp_path: Path) -> None:
    (history,) = run(pieces.config(train_loop=pieces.loop(epochs=4), checkpoint={"monitor": "max:val_loss"}))
    worst = max(range(4), key=lambda epoch: history.history["val_loss"][epoch])
    run(pieces.config(train_loop=pieces.loop(epochs=4), checkpoint={"monitor": "max:val_loss"}), "best")
    assert pieces.log(tmp_path / "run", "resumed")[-1]["epochs"] == worst + 1


def test_best_by_a_metric_that_no_checkpoint_has_names_those_that_they_have(run: Run) -> None:
    run(pieces.config())
    with pytest.raises(StepNotFoundError, match=r"'accuracy'.*val_loss"):
        run(pieces.config(checkpoint={"monitor": "accuracy", "every_n_batches": 3, "max_to_keep": None}), "best")


def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(run: Run, tmp_path: Path, damage: Any) -> None:
    first = run(pieces.config())
    newest = tmp_path / "run" / "cycle-1" / "step-0000000016"
    damage.flip(damage.first_file(newest), -8)
    (tmp_path / "run" / "cycle-1" / "final").rename(tmp_path / "elsewhere")
    assert [each.history for each in run(pieces.config())] != []
    assert pieces.log(tmp_path / "run", "resumed")[-1]["step"] == 15
    assert rows(tmp_path) == [("1", "1"), ("1", "2")]
    assert len(first) == 1
