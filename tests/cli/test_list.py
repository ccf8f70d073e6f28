"""``hpcckpt list``."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hpcckpt as hc
from hpcckpt.backends import registry
from hpcckpt.format import layout
from hpcckpt.native.posix_files import PosixFileSystem

pytestmark = pytest.mark.one_case

Cli = Callable[..., Any]
KEYS = {
    "step", "epoch", "created", "nbytes", "ranks", "backend", "level", "metrics", "valid", "committed", "problem",
    "tags", "path", "save_id",
}  # fmt: skip


def test_json_has_one_entry_for_each_checkpoint(cli: Cli, saved: Path) -> None:
    result = cli("list", saved, "--json")
    assert result.code == 0
    assert result.err == ""
    assert set(result.json) == {"directory", "resume_step", "best_step", "metric", "checkpoints", "other", "nbytes"}
    assert (result.json["resume_step"], result.json["best_step"], result.json["metric"]) == (30, 20, "val_loss")
    steps = result.json["checkpoints"]
    assert all(set(step) == KEYS for step in steps)
    assert [step["step"] for step in steps] == [10, 20, 30]
    assert [step["tags"] for step in steps] == [[], ["best"], ["latest"]]
    assert [(step["ranks"], step["epoch"], step["valid"]) for step in steps] == [
        (3, 1, True),
        (3, 2, True),
        (3, 3, True),
    ]


def test_steps_of_a_backend_that_is_not_installed_are_not_called_valid(
    cli: Cli, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = registry.discover()
    monkeypatch.setattr(registry, "discover", lambda: tuple(info for info in found if info.name != "rankfile"))
    result = cli("list", saved)
    assert all(" ? " in f"{row} " for row in result.out.splitlines()[1:4])
    assert " yes" not in result.out
    assert "'rankfile' is not one of" in result.out + result.err


def test_table_marks_best_and_the_step_a_restart_would_use(cli: Cli, saved: Path) -> None:
    result = cli("list", saved)
    head, *rows = result.out.splitlines()
    assert head.replace("(", " (").split()[:3] == ["STEP", "EPOCH", "TIME"]
    assert head.split()[-5:] == ["SIZE", "RANKS", "VAL_LOSS", "VALID", "TAGS"]
    assert rows[1].endswith("best")
    assert rows[2].endswith("latest *")
    assert result.err.startswith("3 valid, ")
    assert result.err.endswith(" in total; a restart would use step 30\n")
    assert cli("list", saved, "-q").err == ""


def test_damaged_and_unfinished_steps_are_shown_as_such(cli: Cli, saved: Path, damage: Any) -> None:
    damage.cut(damage.first_file(saved / "step-0000000030"))
    (saved / ".step-0000000040.tmp-abcdef").mkdir()
    result = cli("list", saved, "--json")
    by_step = {step["step"]: step for step in result.json["checkpoints"]}
    assert result.code == 0
    assert result.json["resume_step"] == 20
    assert by_step[30]["tags"] == ["damaged"]
    assert "bytes instead of" in by_step[30]["problem"]
    assert (by_step[40]["tags"], by_step[40]["committed"], by_step[40]["valid"]) == (["incomplete"], False, False)
    text = cli("list", saved)
    assert "2 valid, 1 damaged, 1 incomplete, " in text.err
    assert "a restart would use step 20" in text.err
    assert [step["step"] for step in cli("list", saved, "--json", "--valid-only").json["checkpoints"]] == [10, 20]


def test_a_save_in_progress_is_not_called_incomplete(cli: Cli, busy: Path) -> None:
    (busy / ".step-0000000040.tmp-abcdef").mkdir()
    assert cli("list", busy, "--json").json["checkpoints"][-1]["tags"] == ["saving"]


def test_pinned_steps_are_tagged(cli: Cli, saved: Path) -> None:
    cli("pin", saved, "10")
    assert cli("list", saved, "--json").json["checkpoints"][0]["tags"] == ["pinned"]


@pytest.mark.parametrize(
    ("order", "expected"), [("step", [10, 20, 30]), ("metric", [20, 10, 30]), ("time", [10, 20, 30])]
)
def test_order(order: str, expected: list[int], cli: Cli, saved: Path) -> None:
    result = cli("list", saved, "--json", "--sort", order)
    assert [step["step"] for step in result.json["checkpoints"]] == expected


def test_another_metric_makes_another_best(cli: Cli, saved: Path) -> None:
    result = cli("list", saved, "--json", "--metric", "max:acc")
    assert (result.json["metric"], result.json["best_step"]) == ("acc", 30)
    assert " ACC " in cli("list", saved, "--metric", "max:acc").out


def test_a_metric_that_is_not_a_number_becomes_text(cli: Cli, tmp_path: Path) -> None:
    with hc.Checkpointer(tmp_path / "run") as ckpt:
        ckpt.save(1, {"x": 1}, metrics={"val_loss": float("nan")})
    result = cli("list", tmp_path / "run", "--json")
    assert result.json["checkpoints"][0]["metrics"] == {"val_loss": "nan"}
    assert result.json["best_step"] is None
    assert cli("list", tmp_path / "run").code == 0


def test_what_is_left_of_a_save_without_a_number_has_none(cli: Cli, saved: Path) -> None:
    (saved / ".next-abc").mkdir()
    found = cli("list", saved, "--json").json["checkpoints"][-1]
    assert (found["step"], found["tags"]) == (None, ["incomplete"])
    result = cli("list", saved)
    assert result.out.splitlines()[-1].split()[0] == "-"
    assert "a save: left by a killed job" in result.err
    assert "step -1" not in result.out + result.err


@pytest.mark.parametrize("words", [[], ["--valid-only"]])
def test_an_empty_run_exits_with_4(words: list[str], cli: Cli, tmp_path: Path) -> None:
    result = cli("list", tmp_path, "--json", *words)
    assert result.code == 4
    assert result.json["error"]["kind"] == "step-not-found"


def test_no_directory_exits_with_4(cli: Cli, tmp_path: Path) -> None:
    result = cli("list", tmp_path / "nowhere")
    assert (result.code, result.out) == (4, "")
    assert "does not exist" in result.err


def test_a_metric_that_no_step_has_is_an_error_with_those_that_there_are(cli: Cli, saved: Path) -> None:
    result = cli("list", saved, "--metric", "enrgy")
    assert result.code == 2
    assert "has 'enrgy'; its metrics are: " in result.err
    assert "val_loss" in result.err


def test_a_metric_with_no_steps_to_keep_is_a_usage_error(cli: Cli, saved: Path) -> None:
    result = cli("list", saved, "--metric", "acc:0")
    assert (result.code, "--metric: 'acc:0': the number of steps" in result.err) == (2, True)


def test_runs_shows_one_line_for_each_run_below_a_directory(cli: Cli, save: Any, tmp_path: Path) -> None:
    sweep = tmp_path / "sweep"
    save(sweep / "a", steps=(1, 2))
    save(sweep / "many" / "1", steps=(5,))
    save(sweep / "trained" / "cycle-2")
    save(sweep / "lost", steps=(3,))
    next((sweep / "lost").rglob("manifest.json")).unlink()
    (sweep / "notes").mkdir()
    result = cli("list", sweep, "--runs")
    rows = [line.split() for line in result.out.splitlines()[1:]]
    assert [(Path(row[0]).relative_to(sweep).as_posix(), row[1], row[2]) for row in rows] == [
        ("a", "2", "2"), ("lost", "1", "-"), ("many/1", "1", "5"), ("trained/cycle-2", "3", "30"),
    ]  # fmt: skip
    assert "lost: nothing to resume from" in result.err
    assert "4 runs, " in result.err
    found = cli("list", sweep, "--runs", "--json").json["runs"]
    assert sum(each["nbytes"] for each in found) > 0
    assert [each["resume_step"] for each in found] == [2, None, 5, 30]


def test_runs_names_the_job_that_writes_and_an_empty_directory_is_an_error(cli: Cli, busy: Path) -> None:
    assert cli("list", busy, "--runs").out.splitlines()[1].endswith("running")
    (busy.parent / "empty").mkdir()
    assert cli("list", busy.parent / "empty", "--runs").code == 4
    assert cli("list", busy, "--runs", "--metric", "acc").code == 2


@pytest.mark.parametrize(("n_retired", "left", "resumed"), [(1, [20, 30], 30), (3, [40], 40)])
def test_steps_that_a_running_job_retires_meanwhile_are_not_shown_as_damaged(
    cli: Any, saved: Path, save: Any, monkeypatch: Any, n_retired: int, left: list[int], resumed: int
) -> None:
    newer = save(saved.with_name("newer"), steps=(40,))
    waiting = [saved / layout.step_dirname(step) for step in (10, 20, 30)][:n_retired]
    names = PosixFileSystem.names

    def retire(files: PosixFileSystem, directory: Any) -> Any:
        found = names(files, directory)
        while waiting:
            shutil.rmtree(waiting.pop())
            if n_retired == 3 and not waiting:
                (newer / layout.step_dirname(40)).rename(saved / layout.step_dirname(40))
        return found

    monkeypatch.setattr(PosixFileSystem, "names", retire)
    listed = cli("list", saved, "--json").json
    assert [(row["step"], row["tags"][-1:] == ["damaged"]) for row in listed["checkpoints"]] == [
        (n, False) for n in left
    ]
    assert listed["resume_step"] == resumed
