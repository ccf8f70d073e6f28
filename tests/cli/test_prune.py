"""``hpcckpt prune``."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hpcckpt as hc
from hpcckpt.cli import prune
from hpcckpt.core.options import Options
from hpcckpt.errors import NoSpaceError
from hpcckpt.format import layout
from hpcckpt.rundir.journal import NAME, read_journal
from hpcckpt.rundir.lock import RunLock, this_holder
from hpcckpt.rundir.pins import pin_save
from hpcckpt.rundir.workspace import Workspace
from hpcckpt.tools.prune import LEFT as LEFT_BY_JOBS, plan_prune
from hpcckpt.tools.report.read_history import read_run_history
from hpcckpt.tools.report.watch_view import news
from tests.cli.conftest import save_run
from tests.support.listing import listed
from tests.support.small_disk import disk_of_size, fill

Cli = Callable[..., Any]
LEFT = (".step-0000000040.tmp-abcdef", ".retired-abcdef")


@pytest.fixture
def cluttered(saved: Path) -> Path:
    """A run with what killed jobs leave."""
    for name in LEFT:
        (saved / name / "data").mkdir(parents=True)
        (saved / name / "data" / "rank-00000.safetensors").write_bytes(b"x" * 100)
    return saved


def steps(cli: Cli, run: Path) -> list[int]:
    return [step["step"] for step in cli("list", run, "--json").json["checkpoints"] if step["committed"]]


def names(run: Path) -> set[str]:
    return set(listed(run))


def test_without_rules_only_leftovers_go(cli: Cli, cluttered: Path) -> None:
    result = cli("prune", cluttered, "--yes", "--json")
    assert result.code == 0
    assert set(result.json) == {"directory", "dry_run", "kept", "removed", "nbytes", "failed"}
    assert result.json["kept"] == [10, 20, 30]
    assert {(Path(gone["path"]).name, gone["step"]) for gone in result.json["removed"]} == {
        (name, None) for name in LEFT
    }
    assert result.json["nbytes"] == 200
    assert names(cluttered) == {"step-0000000010", "step-0000000020", "step-0000000030"}


@pytest.mark.parametrize("words", [("prune", "--keep-last", 1), ("rm", 10, 20)])
def test_steps_can_be_removed_where_not_even_the_lock_can_be_written(cli: Cli, tmp_path: Path, words: Any) -> None:
    with disk_of_size(tmp_path / "disk") as disk:
        run = save_run(disk / "run")
        fill(disk / "filler")
        with pytest.raises(NoSpaceError):
            RunLock.take(run)
        result = cli(words[0], run, *words[1:], "--yes", "--json")
        assert result.code == 0
        assert [gone["step"] for gone in result.json["removed"]] == [10, 20]
        assert steps(cli, run) == [30]
        assert hc.load(run)


def test_on_a_full_disk_a_step_that_was_pinned_meanwhile_is_not_removed(tmp_path: Path) -> None:
    with disk_of_size(tmp_path / "disk") as disk:
        run = save_run(disk / "run")
        rules = prune._Rules(Options(max_to_keep=1), LEFT_BY_JOBS)
        shown = plan_prune(run, rules.keep, rules.kinds)
        pin_save(run, 10)
        fill(disk / "filler")
        done = prune._act(run, rules, shown)
        assert [gone.step for gone in done.plan.removals] == [20]
        assert done.plan.kept == (10, 30)


def test_on_a_full_disk_nothing_is_removed_while_a_job_holds_the_lock(cli: Cli, tmp_path: Path) -> None:
    with disk_of_size(tmp_path / "disk") as disk:
        run = save_run(disk / "run")
        holder = {**dataclasses.asdict(this_holder()), "host": "elsewhere"}
        (run / layout.LOCK).write_text(json.dumps(holder))
        fill(disk / "filler")
        result = cli("prune", run, "--keep-last", 1, "--yes")
        assert (result.code, steps(cli, run)) == (8, [10, 20, 30])
        assert f"{run} is in use by process" in result.err


def test_dry_run_changes_nothing(cli: Cli, cluttered: Path) -> None:
    before = names(cluttered)
    result = cli("prune", cluttered, "--keep-last", 1, "--dry-run")
    assert result.code == 0
    assert "would remove step 10" in result.out
    assert f"would remove {LEFT[0]}" in result.out
    assert names(cluttered) == before


@pytest.mark.parametrize(
    ("rules", "kept"),
    [
        (["--keep-last", 2], [20, 30]),
        (["--keep-best", "val_loss"], [20, 30]),
        (["--keep-last", 1, "--keep-best", "min:acc"], [10, 30]),
        (["--keep-period", 20], [20, 30]),
        (["--keep-last", 9], [10, 20, 30]),
    ],
)
def test_rules(rules: list[Any], kept: list[int], cli: Cli, saved: Path) -> None:
    result = cli("prune", saved, "--yes", "--json", *rules)
    assert (result.code, result.json["kept"]) == (0, kept)
    assert steps(cli, saved) == kept


def test_pinned_and_damaged_steps_stay(cli: Cli, saved: Path, damage: Any) -> None:
    cli("pin", saved, 10)
    damage.cut(damage.first_file(saved / "step-0000000020"))
    assert cli("prune", saved, "--keep-last", 1, "--yes").code == 0
    assert steps(cli, saved) == [10, 20, 30]


def test_it_asks(cli: Cli, saved: Path) -> None:
    refused = cli("prune", saved, "--keep-last", 1, answer="n\n")
    assert refused.code == 1
    assert "Remove 2 checkpoints" in refused.err
    assert "nothing was changed" in refused.err
    assert steps(cli, saved) == [10, 20, 30]
    assert cli("prune", saved, "--keep-last", 1, answer="y\n").code == 0
    assert steps(cli, saved) == [30]


def test_with_nobody_to_ask_it_does_nothing(cli: Cli, saved: Path) -> None:
    result = cli("prune", saved, "--keep-last", 1, "--json", answer="")
    assert result.code == 2
    assert "[y/N]: \nhpcckpt: error: no answer can be read" in result.err
    assert "--yes" in result.err
    assert steps(cli, saved) == [10, 20, 30]


def test_an_answer_from_a_pipe_leaves_the_next_message_its_own_line(spawn: Cli, saved: Path) -> None:
    result = spawn("prune", saved, "--keep-last", 1, answer="n\n")
    assert result.err.endswith("[y/N]: \nhpcckpt: error: nothing was changed\n")


def test_nothing_to_do_asks_nothing(cli: Cli, saved: Path) -> None:
    result = cli("prune", saved)
    assert (result.code, result.out) == (0, "")
    assert "nothing to remove" in result.err


def test_a_busy_run_exits_with_8(cli: Cli, busy: Path) -> None:
    result = cli("prune", busy, "--keep-last", 1, "--yes", "--json")
    assert (result.code, result.json["error"]["kind"]) == (8, "locked")
    assert "in use by process" in result.err
    assert steps(cli, busy) == [10, 20, 30]
    assert cli("prune", busy, "--keep-last", 1, "--dry-run").code == 0


def test_the_lock_is_given_back(cli: Cli, saved: Path) -> None:
    cli("prune", saved, "--keep-last", 1, "--yes")
    assert not (saved / ".lock").exists()


@pytest.mark.parametrize(("n_failing", "code"), [(1, 6), (2, 1)])
def test_what_cannot_be_removed_is_named(
    n_failing: int, code: int, monkeypatch: pytest.MonkeyPatch, cli: Cli, saved: Path
) -> None:
    retire = Workspace.retire

    def failing(workspace: Workspace, name: str, step: int | None = None) -> bool:
        if name in ("step-0000000010", "step-0000000020")[:n_failing]:
            raise PermissionError(13, "Permission denied", str(workspace.directory / name))
        return retire(workspace, name, step)

    monkeypatch.setattr(Workspace, "retire", failing)
    result = cli("prune", saved, "--keep-last", 1, "--yes", "--json")
    assert result.code == code
    assert len(result.json["failed"]) == n_failing
    assert "not removed: step-0000000010" in result.err


def test_what_appeared_while_the_user_thought_stays(
    monkeypatch: pytest.MonkeyPatch, cli: Cli, save: Callable[..., Path], saved: Path
) -> None:
    def save_more(_question: str) -> None:
        save(saved, (40, 50))

    monkeypatch.setattr("hpcckpt.cli.options.ask", save_more)
    assert cli("prune", saved, "--keep-last", 1).code == 0
    assert steps(cli, saved) == [30, 40, 50]  # 30 was not shown as going, though it would go now


@pytest.mark.parametrize(
    "words",
    [["--keep-last", 0], ["--keep-period", 0], ["--keep-best", ""], ["--keep-best", "min:"], ["--keep-best", "acc:0"]],
)
def test_usage(words: list[Any], cli: Cli, saved: Path) -> None:
    result = cli("prune", saved, "--yes", *words)
    assert (result.code, words[0] in result.err) == (2, True), result.err


def test_a_misspelt_metric_costs_nothing(cli: Cli, saved: Path) -> None:
    result = cli("prune", saved, "--keep-best", "val_los", "--yes")
    assert result.code == 2
    assert "metrics there: acc, val_loss" in result.err
    assert steps(cli, saved) == [10, 20, 30]


def test_absence_exits_with_4(cli: Cli, tmp_path: Path) -> None:
    assert cli("prune", tmp_path / "nowhere", "--yes").code == 4


# -- the journal -----------------------------------------------------------------------------------


def told(run: Path, event: str) -> list[dict[str, Any]]:
    return [entry for entry in read_journal(run) if entry["event"] == event]


def test_the_journal_logs_the_removed_steps_and_report_and_watch_show_it(
    cli: Cli, saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = read_run_history(saved)
    cli("prune", saved, "--keep-last", 1, "--yes")
    (entry,) = told(saved, "removed")
    assert (entry["steps"], entry["n_steps"], entry["by"]) == ([10, 20], 2, "prune")
    after = read_run_history(saved)
    assert [(save.step, save.state) for save in after.saves] == [(10, "removed"), (20, "removed"), (30, "kept")]
    assert [job.last for job in after.jobs] == [job.last for job in before.jobs], "nobody heard of the job again"
    assert [line.partition("removed")[2] for line in news(before, after)] == [" steps 10, 20 (hpcckpt prune)"]
    assert "by hand" in cli("watch", saved, "--once").out
    monkeypatch.chdir(tmp_path)
    assert "removed steps 10, 20 (hpcckpt prune)" in cli("report", saved, "-o", "-").out
    assert cli("report", saved, "--json").json["changes"][0]["steps"] == [10, 20]


def test_what_was_refused_or_only_tried_or_left_by_killed_jobs_is_not_told(cli: Cli, cluttered: Path) -> None:
    before = (cluttered / NAME).read_bytes()
    cli("prune", cluttered, "--keep-last", 1, "--dry-run")
    cli("prune", cluttered, "--keep-last", 1, answer="n\n")
    cli("prune", cluttered, "--yes")
    assert (cluttered / NAME).read_bytes() == before


def test_a_run_without_a_journal_gets_none(cli: Cli, saved: Path) -> None:
    (saved / NAME).unlink()
    assert cli("prune", saved, "--keep-last", 1, "--yes").code == 0
    assert NAME not in os.listdir(saved)


def test_a_journal_that_cannot_be_written_keeps_nothing_from_going(cli: Cli, saved: Path) -> None:
    (saved / NAME).unlink()
    (saved / NAME).mkdir()
    result = cli("prune", saved, "--keep-last", 1, "--yes")
    assert (result.code, steps(cli, saved)) == (0, [30])


def test_a_step_that_is_given_to_prune_names_rm(cli: Cli, saved: Path) -> None:
    result = cli("prune", saved, 20)
    assert result.code == 2
    assert f"hpcckpt rm {saved} 20" in result.err
    assert (saved / "step-0000000020").is_dir()


def test_if_nothing_is_removed_what_was_moved_aside_is_named(cli: Cli, saved: Path) -> None:
    (saved / "step-0000000030").rename(saved / ".aside-step-0000000030-0011aabb")
    result = cli("prune", saved)
    assert f"nothing to remove from {saved}" in result.err
    assert "kept: 1 directory moved aside " in result.err
    assert f"removed by: hpcckpt prune --aside {saved}\n" in result.err
