"""The files of a run directory: appended over jobs, without rows twice, and readable behind a crash."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

import hpcckpt
from hpcckpt.errors import CorruptError
from hpcckpt.rundir.discovery import find_step
from hpcckpt.train.run.run_directory import Row, TrainingDirectory
from hpcckpt.train.run.run_state import RunState, epochs_of


def row(cycle: int, epoch: int, **metrics: float) -> Row:
    return Row(cycle, epoch, epoch * 10, 1.5, metrics or {"loss": 1 / epoch})


@pytest.fixture
def directory(tmp_path: Path) -> TrainingDirectory:
    return TrainingDirectory(tmp_path / "run")


def table(directory: TrainingDirectory) -> list[dict[str, str]]:
    return list(csv.DictReader((directory.path / "metrics.csv").read_text(encoding="utf-8").splitlines()))


def test_rows_come_back_to_the_bit(directory: TrainingDirectory) -> None:
    rows = [row(1, 1, loss=0.1 + 0.2, mae=1e-30), row(1, 2, loss=float("inf"), mae=3.0)]
    for each in rows:
        directory.add(each)
    assert directory.rows() == rows


def test_a_metric_that_comes_later_gets_a_column_and_earlier_rows_stay(directory: TrainingDirectory) -> None:
    directory.add(row(1, 1, loss=1.0))
    directory.add(row(2, 1, loss=2.0, val_loss=3.0))
    directory.add(row(2, 2, val_loss=4.0))
    assert [(each["loss"], each["val_loss"]) for each in table(directory)] == [("1.0", ""), ("2.0", "3.0"), ("", "4.0")]


def test_going_back_takes_out_epochs_that_are_trained_again(directory: TrainingDirectory) -> None:
    for each in (row(1, 1), row(1, 2), row(2, 1), row(2, 2), row(2, 3)):
        directory.add(each)
    directory.go_back(2, 1, 10)
    directory.add(row(2, 2))
    assert [(each["cycle"], each["epoch"]) for each in table(directory)] == [
        ("1", "1"),
        ("1", "2"),
        ("2", "1"),
        ("2", "2"),
    ]
    epochs = [(e["cycle"], e["epoch"]) for e in directory.entries() if e["event"] == "epoch"]
    assert epochs == [(1, 1), (1, 2), (2, 1), (2, 2)]


def test_going_back_takes_out_steps_and_ends_of_cycles_that_come_behind(directory: TrainingDirectory) -> None:
    directory.log("begin", job=1)
    for cycle, step in ((1, 3), (1, 6), (2, 3)):
        directory.log("saved", cycle=cycle, step=step)
    directory.log("complete", cycle=1)
    directory.go_back(1, 0, 3)
    assert [(e["event"], e.get("step")) for e in directory.entries()] == [("begin", None), ("saved", 3)]


@pytest.mark.parametrize("name", ["log.jsonl", "metrics.csv"])
def test_a_line_that_a_crash_has_cut_is_taken_out_and_the_next_one_can_be_read(
    name: str, directory: TrainingDirectory
) -> None:
    directory.add(row(1, 1))
    with (directory.path / name).open("a", encoding="utf-8") as file:
        file.write('{"time": "2026' if name == "log.jsonl" else "1,2,2")
    directory.go_back(1, 1, 10)
    directory.add(row(1, 2))
    assert [each.epoch for each in directory.rows()] == [1, 2]
    assert [
        json.loads(line)["epoch"] for line in (directory.path / "log.jsonl").read_text(encoding="utf-8").splitlines()
    ] == [1, 2]


def test_numbers_that_json_has_not_are_texts(directory: TrainingDirectory) -> None:
    directory.log("epoch", cycle=1, epoch=1, metrics={"loss": float("nan")})
    assert json.loads((directory.path / "log.jsonl").read_text(encoding="utf-8"), parse_constant=pytest.fail)[
        "metrics"
    ] == {"loss": "nan"}


@pytest.mark.parametrize("text", ["[", "[" * 100_000], ids=["cut", "deep"])
def test_a_document_that_is_no_json_is_named(text: str, directory: TrainingDirectory) -> None:
    directory.path.mkdir()
    (directory.path / "config.json").write_text(text, encoding="utf-8")
    with pytest.raises(CorruptError, match=r"config\.json"):
        directory.read("config.json")


NO_CONFIGURATIONS: list[Any] = [
    {}, [], [1], [{"checkpoint": "x"}], [{"checkpoint": {"directory": 5}}], [{"checkpoint": {"directory": "a\0"}}],
]  # fmt: skip


@pytest.mark.parametrize("document", NO_CONFIGURATIONS, ids=str)
def test_a_document_that_is_no_configuration_is_named_with_what_to_do(
    document: Any, directory: TrainingDirectory
) -> None:
    directory.write("config.json", document)
    with pytest.raises(CorruptError, match=r"config\.json .*mend it, or choose another run directory"):
        RunState(directory, ())


@pytest.mark.parametrize("document", [[1], {"jobs": 5}], ids=str)
def test_a_document_that_lists_no_jobs_is_named_with_what_to_do(document: Any, directory: TrainingDirectory) -> None:
    directory.write("environment.json", document)
    with pytest.raises(CorruptError, match=r"environment\.json .*mend it, or choose another run directory"):
        directory.jobs()


def test_lines_of_the_log_that_nobody_can_read_are_left_out(directory: TrainingDirectory) -> None:
    directory.log("begin", job=1)
    for facts in ({"epoch": "x"}, {"epoch": None}, {"step": []}):
        directory.log("epoch" if "epoch" in facts else "saved", cycle=1, **facts)
    with (directory.path / "log.jsonl").open("a", encoding="utf-8") as file:
        file.write("[" * 100_000 + "\n" + '{"event": "epoch", "cycle": 1, "epoch": Infinity}\n')
    directory.log("epoch", cycle=1, epoch=2)
    directory.go_back(1, 0, 0)
    assert [entry["event"] for entry in directory.entries()][:1] == ["begin"]
    assert all(entry.get("epoch") != 2 for entry in directory.entries())


@pytest.mark.parametrize("n_lines", [0, 1])
def test_a_row_that_is_too_long_is_left_out(n_lines: int, directory: TrainingDirectory) -> None:
    directory.add(row(1, 1))
    lines = (directory.path / "metrics.csv").read_text(encoding="utf-8").splitlines()
    lines.insert(n_lines, f'"{"x" * 200_000}"')
    (directory.path / "metrics.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    directory.add(row(1, 2))
    assert [each.epoch for each in directory.rows()] == [1, 2]


def test_a_checkpoint_whose_epoch_is_no_number_has_none(tmp_path: Path) -> None:
    with hpcckpt.Checkpointer(tmp_path, async_save=False) as checkpointer:
        checkpointer.save(5, {"w": 1.0}, objects={"epoch": "abc"}).result()
    assert epochs_of(find_step(tmp_path)) == 0


def test_what_is_moved_aside_is_there_still(directory: TrainingDirectory) -> None:
    directory.write("config.json", [1])
    target = directory.move_aside(["config.json", "metrics.csv"])
    assert target is not None
    assert json.loads((target / "config.json").read_text(encoding="utf-8")) == [1]
    assert directory.read("config.json") is None
