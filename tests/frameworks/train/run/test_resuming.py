"""Where a run begins: each of --resume's words as a user would expect it, and what may have changed meanwhile."""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hpcckpt as hc
from hpcckpt import tiers
from hpcckpt.errors import OptionError, StepNotFoundError
from hpcckpt.rundir.discovery import step_numbers
from hpcckpt.train import Environment
from hpcckpt.train.config_errors import TrainConfigError
from hpcckpt.train.run import resume_point
from hpcckpt.train.run.run_directory import TrainingDirectory
from tests.support.programs import environment
from tests.support.train import pieces
from tests.support.undrained import killed_before_the_first_drain

Run = Callable[..., list[Any]]


def epochs(history: Any) -> list[int]:
    return list(history.epoch)


def rows(tmp_path: Path) -> list[tuple[str, str]]:
    return [
        (row["cycle"], row["epoch"])
        for row in csv.DictReader((tmp_path / "run" / "metrics.csv").read_text(encoding="utf-8").splitlines())
    ]


def steps(tmp_path: Path, cycle: int = 1) -> list[int]:
    return step_numbers(tmp_path / "run" / f"cycle-{cycle}")


def fail_at_epoch(epoch: int, run: Run, config: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(pieces.Fails, "epoch", epoch)
        with pytest.raises(InterruptedError):
            run(config)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("auto", ("auto", None, 0)), ("latest", ("latest", None, 0)), ("best", ("best", None, 0)),
        ("never", ("never", None, 0)), ("500", ("step", None, 500)), (500, ("step", None, 500)),
        ("2:0", ("step", 2, 0)),
    ],
)  # fmt: skip
def test_resume_is_a_word_or_a_step_or_a_cycle_and_a_step(text: Any, wanted: tuple[str, int | None, int]) -> None:
    found = resume_point.parse(text)
    assert (found.mode, found.cycle, found.step) == wanted


@pytest.mark.parametrize("text", ["newest", "", "-1", "0:5", "1:2:3", True, None, 1.5])
def test_resume_that_is_anything_else_is_refused(text: Any) -> None:
    with pytest.raises(OptionError, match="resume: "):
        resume_point.parse(text)


# -- auto ----------------------------------------------------------------------------------------------


def test_auto_begins_where_nothing_is_and_trains_nothing_where_all_is_complete(run: Run, tmp_path: Path) -> None:
    first = run(pieces.two_cycles())
    before = pieces.ends_with(tmp_path / "run")
    again = run(pieces.two_cycles())
    assert [each.history for each in again] == [each.history for each in first]
    assert pieces.ends_with(tmp_path / "run") == before


WITHOUT = """
import sys
sys.modules["tensorflow"] = sys.modules["keras"] = None
from hpcckpt.cli.app import run
sys.exit(run(sys.argv[1:]))
"""
"""The command line, where no framework can be imported."""


@pytest.mark.parametrize("resume", ["auto", "latest"])
def test_the_restart_of_a_complete_run_ends_before_a_framework_is_imported(
    resume: str, run: Run, tmp_path: Path
) -> None:
    (first,) = run(pieces.config())
    entries = pieces.log(tmp_path / "run")
    (tmp_path / "c.json").write_text(json.dumps(pieces.config()), encoding="utf-8")

    def restart(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", WITHOUT, "train", "-c", "c.json", "--run", "run", "--json", *words]
        return subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False)

    done = restart("--resume", resume)
    assert done.returncode == 0, done.stderr
    assert f"complete cycles=1 in {tmp_path / 'run'}: nothing is left to train" in done.stderr
    assert json.loads(done.stdout)["cycles"] == [{"cycle": 1, "history": first.history}]
    for words in (
        ["--set", "[0].train_loop={'KerasTrainLoop': {'num_epochs': 3}}"],
        ["--resume", "never"],
        ["--resume", "6"],
    ):
        assert "nothing is left" not in restart(*words).stderr
    assert pieces.log(tmp_path / "run") == entries


def test_a_complete_run_of_a_configuration_on_standard_input_is_found(run: Run, tmp_path: Path) -> None:
    run(pieces.config())
    (tmp_path / "runs").mkdir()
    (tmp_path / "run").rename(tmp_path / "runs" / "stdin")
    command = [sys.executable, "-c", WITHOUT, "train", "-c", "-"]
    text = json.dumps(pieces.config())
    done = subprocess.run(
        command, cwd=tmp_path, env=environment(), input=text, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert f"complete cycles=1 in {tmp_path / 'runs' / 'stdin'}: nothing is left to train" in done.stderr


def test_a_complete_run_that_is_given_more_epochs_trains_those(run: Run, tmp_path: Path) -> None:
    (first,) = run(pieces.config(train_loop=pieces.loop(epochs=2)))
    (more,) = run(pieces.config(train_loop=pieces.loop(epochs=4)))
    assert epochs(more) == [0, 1, 2, 3]
    assert more.history["loss"][:2] == first.history["loss"]
    assert rows(tmp_path) == [("1", str(epoch)) for epoch in (1, 2, 3, 4)]
    assert pieces.log(tmp_path / "run", "go on")[0]["changes"] == [
        "[0].train_loop.hpcckpt.train.KerasTrainLoop.num_epochs: 2 in the run, 4 now"
    ]


def test_a_complete_cycle_that_is_killed_in_added_epochs_is_not_complete(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few, many = (pieces.config(train_loop=pieces.loop(epochs=n, callbacks=[{"Fails": {}}])) for n in (1, 3))
    run(few)
    fail_at_epoch(2, run, many, monkeypatch)
    (history,) = run(many)
    assert epochs(history) == [0, 1, 2]
    assert rows(tmp_path) == [("1", str(epoch)) for epoch in (1, 2, 3)]


def test_more_epochs_give_what_a_run_with_so_many_from_the_start_gives_to_the_bit(run: Run, tmp_path: Path) -> None:
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


def test_a_cycle_with_a_successor_is_not_trained_again_without_its_checkpoints(run: Run, tmp_path: Path) -> None:
    first = run(pieces.two_cycles())
    shutil.rmtree(tmp_path / "run" / "cycle-1")
    again = run(pieces.two_cycles())
    assert [each.history for each in again] == [each.history for each in first]
    assert not (tmp_path / "run" / "cycle-1").exists()


def test_a_run_directory_of_another_configuration_is_refused_with_what_differs(run: Run, tmp_path: Path) -> None:
    run(pieces.config())
    before = pieces.ends_with(tmp_path / "run", 1)
    other = pieces.config(optimizer={"tf.keras.optimizers.Adam": {"learning_rate": 0.5}}, loss="mae")
    with pytest.raises(TrainConfigError) as caught:
        run(other)
    assert [problem.where for problem in caught.value.problems] == [
        "[0].loss", "[0].optimizer.tf.keras.optimizers.Adam.learning_rate",
    ]  # fmt: skip
    assert pieces.ends_with(tmp_path / "run", 1) == before


# -- whose checkpoints ---------------------------------------------------------------------------------


def elsewhere(tmp_path: Path, **changes: Any) -> list[dict[str, Any]]:
    return pieces.config(checkpoint={"directory": str(tmp_path / "elsewhere")}, **changes)


@pytest.mark.parametrize("options", [{}, {"resume": "never", "overwrite": True}])
def test_checkpoints_of_another_run_are_not_gone_on_from_nor_moved(
    options: dict[str, Any], run: Run, tmp_path: Path
) -> None:
    run(elsewhere(tmp_path, train_loop=pieces.loop(epochs=1)))
    before = step_numbers(tmp_path / "elsewhere" / "cycle-1")
    with pytest.raises(TrainConfigError, match=r"\[0\]\.checkpoint\.directory: .*elsewhere .* of the run in .*run;"):
        Environment(tmp_path / "other", verbose=0, **options).run(elsewhere(tmp_path, seed=2))
    assert step_numbers(tmp_path / "elsewhere" / "cycle-1") == before != []


def test_a_directory_that_a_run_has_named_is_its_own_before_there_is_a_checkpoint(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_at_epoch(0, run, elsewhere(tmp_path, train_loop=pieces.loop(callbacks=[{"Fails": {}}])), monkeypatch)
    with pytest.raises(TrainConfigError, match="of the run in"):
        Environment(tmp_path / "other", verbose=0).run(elsewhere(tmp_path))


def test_a_run_that_was_moved_goes_on_with_checkpoints_elsewhere(run: Run, tmp_path: Path) -> None:
    run(elsewhere(tmp_path, train_loop=pieces.loop(epochs=1)))
    (tmp_path / "run").rename(tmp_path / "moved")
    (history,) = Environment(tmp_path / "moved", "latest", verbose=0).run(elsewhere(tmp_path))
    assert epochs(history) == [0, 1]


@pytest.mark.parametrize("resume", ["auto", "8"])
def test_checkpoints_without_the_configuration_that_they_are_of_are_not_gone_on_from(
    resume: str, run: Run, tmp_path: Path
) -> None:
    run(pieces.config(train_loop=pieces.loop(epochs=1)))
    (tmp_path / "run" / "config.json").unlink()
    with pytest.raises(OptionError, match=r"cycle-1 holds checkpoints, and .*run has no config\.json"):
        run(pieces.config(train_loop=pieces.loop(epochs=1)), resume)


def test_a_cycle_that_is_new_does_not_take_checkpoints_that_are_there(run: Run, tmp_path: Path) -> None:
    run(pieces.config(train_loop=pieces.loop(epochs=1)))
    shutil.copytree(tmp_path / "run" / "cycle-1", tmp_path / "elsewhere" / "cycle-2")
    second = {"checkpoint": {"directory": str(tmp_path / "elsewhere")}, "seed": 2}
    with pytest.raises(
        TrainConfigError, match=r"\[1\]\.checkpoint\.directory: .*cycle-2 holds checkpoints that are not of"
    ):
        run([*pieces.config(train_loop=pieces.loop(epochs=1)), second])


def test_a_run_directory_with_checkpoints_of_another_program_is_refused(run: Run, tmp_path: Path) -> None:
    with hc.Checkpointer(tmp_path / "run") as ckpt:
        ckpt.save(520, {"w": [1.0]})
    with pytest.raises(TrainConfigError, match="run holds checkpoints of another program, up to step 520"):
        run(pieces.config())
    assert not steps(tmp_path)


def test_another_directory_for_checkpoints_is_no_way_round_the_comparison(run: Run, tmp_path: Path) -> None:
    run(pieces.config(train_loop=pieces.loop(epochs=1)))
    before = pieces.ends_with(tmp_path / "run", 1)
    with pytest.raises(TrainConfigError) as caught:
        run(elsewhere(tmp_path, seed=7))
    assert {problem.where for problem in caught.value.problems} >= {"[0].checkpoint.directory", "[0].seed"}
    assert pieces.ends_with(tmp_path / "run", 1) == before
    assert not (tmp_path / "elsewhere").exists()


def test_records_of_checkpoints_that_are_gone_are_kept_aside(run: Run, tmp_path: Path) -> None:
    run(pieces.config(train_loop=pieces.loop(epochs=1)))
    before = (tmp_path / "run" / "metrics.csv").read_text(encoding="utf-8")
    shutil.rmtree(tmp_path / "run" / "cycle-1")
    run(pieces.config(train_loop=pieces.loop(epochs=1)))
    (kept,) = (tmp_path / "run").glob(".aside-2*")
    assert (kept / "metrics.csv").read_text(encoding="utf-8") == before
    assert (kept / "log.jsonl").read_text(encoding="utf-8").count('"event": "saved"') == 3
    assert rows(tmp_path) == [("1", "1")]


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
    with pytest.raises(StepNotFoundError, match=r"find run directory: .*holds no run"):
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


def test_a_request_goes_back_once_however_often_its_job_is_requeued(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(pieces.config())
    for request, resumed in (("42", [6]), ("42", [6]), ("43", [6, 6]), ("", [6, 6, 6])):
        monkeypatch.setenv("HPCCKPT_REQUEST", request)
        run(pieces.config(), 6)
        assert [each["step"] for each in pieces.log(tmp_path / "run", "resumed")] == resumed
    assert [each["resume"] for each in pieces.log(tmp_path / "run", "go on")] == ["6", "latest", "6", "6"]


@pytest.mark.parametrize(
    ("job", "once"),
    [
        ({"request": "42", "resume": "2:6"}, "latest"),
        ({"request": "42", "resume": "6"}, "2:6"),  # another command of the same job
        ({"request": "41", "resume": "2:6"}, "2:6"),
        ({"resume": "2:6"}, "2:6"),
        (5, "2:6"),
    ],
    ids=str,
)
def test_a_request_is_known_by_what_its_jobs_have_recorded(job: Any, once: str, tmp_path: Path) -> None:
    directory = TrainingDirectory(tmp_path)
    directory.write("environment.json", {"jobs": [job]})
    wanted = resume_point.parse("2:6")
    assert str(resume_point.once(wanted, directory, {"HPCCKPT_REQUEST": "42"})) == once
    assert resume_point.once(wanted, directory, {}) == wanted


@pytest.mark.parametrize(("attempt", "once"), [("42/0", "6"), ("42/1", "latest"), (None, "latest")])
def test_a_step_asked_for_again_within_one_start_of_a_job_is_gone_back_to(
    attempt: str | None, once: str, tmp_path: Path
) -> None:
    directory = TrainingDirectory(tmp_path)
    directory.write("environment.json", {"jobs": [{"request": "42", "resume": "6", "attempt": "42/0"}]})
    environ = {"HPCCKPT_REQUEST": "42"} | ({} if attempt is None else {"HPCCKPT_ATTEMPT": attempt})
    assert str(resume_point.once(resume_point.parse("6"), directory, environ)) == once


def test_a_job_records_the_start_in_which_it_went_back(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(pieces.config())
    monkeypatch.setenv("HPCCKPT_REQUEST", "42")
    for attempt, resumed in (("42/0", [6]), ("42/0", [6, 6]), ("42/1", [6, 6])):
        monkeypatch.setenv("HPCCKPT_ATTEMPT", attempt)
        run(pieces.config(), 6)
        assert [each["step"] for each in pieces.log(tmp_path / "run", "resumed")] == resumed


def test_a_job_that_began_a_new_run_may_be_requeued_before_its_first_checkpoint(tmp_path: Path) -> None:
    directory = TrainingDirectory(tmp_path)
    directory.write("environment.json", {"jobs": [{"request": "42", "resume": "never"}]})
    assert str(resume_point.once(resume_point.parse("never"), directory, {"HPCCKPT_REQUEST": "42"})) == "auto"


def test_a_step_is_gone_back_to_though_a_newer_one_is_on_scratch(run: Run, tmp_path: Path) -> None:
    config = pieces.config(checkpoint={"scratch": str(tmp_path / "scratch"), "max_to_keep": None})
    run(config)
    assert tiers.whole_on(tmp_path / "scratch", tmp_path / "run" / "cycle-1")[-1].step == 16
    (history,) = run(config, "8")
    assert pieces.log(tmp_path / "run", "resumed")[-1]["step"] == 8
    assert epochs(history) == [0, 1]
    assert tiers.whole_on(tmp_path / "scratch", tmp_path / "run" / "cycle-1")[-1].step == 16


def test_a_run_killed_before_its_first_drain_resumes_from_scratch(run: Run, tmp_path: Path) -> None:
    config = pieces.config(checkpoint={"scratch": str(tmp_path / "scratch"), "every_n_batches": 3})
    with killed_before_the_first_drain(tmp_path / "run", tmp_path / "scratch"):
        run(config)
    assert steps(tmp_path) == []
    (history,) = run(config, "latest")
    assert pieces.log(tmp_path / "run", "resumed")[-1]["step"] == 3
    assert epochs(history) == [0, 1]


def test_a_step_that_two_cycles_have_is_asked_about(run: Run) -> None:
    run(pieces.two_cycles())
    with pytest.raises(OptionError, match="say 1:8 or 2:8"):
        run(pieces.two_cycles(), "8")


def test_a_step_that_is_not_there_names_those_that_are(run: Run) -> None:
    run(pieces.config())
    with pytest.raises(StepNotFoundError, match=r"newest of each cycle: .*1:15, 1:16"):
        run(pieces.config(), "7")


def test_best_goes_back_to_the_best_checkpoint_of_the_newest_cycle(run: Run, tmp_path: Path) -> None:
    checkpoint = {"monitor": "max:val_loss", "max_to_keep": None}
    config = pieces.config(train_loop=pieces.loop(epochs=4), checkpoint=checkpoint, seed=5)
    (history,) = run(config)
    worst = max(range(4), key=lambda epoch: history.history["val_loss"][epoch])
    run(config, "best")
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
