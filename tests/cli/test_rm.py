"""``hpcckpt rm``, suggestions for misspelt verbs, completion, time zones."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hpcckpt as hc
from hpcckpt.cli.verbs import MEANT, find_verb
from hpcckpt.restoring.segments import held_step
from hpcckpt.rundir.journal import read_journal

pytestmark = pytest.mark.one_case

Cli = Callable[..., Any]


def steps(cli: Cli, run: Path) -> list[int]:
    return [step["step"] for step in cli("list", run, "--json").json["checkpoints"]]


def test_one_step_is_removed_and_the_journal_says_so(cli: Cli, saved: Path) -> None:
    result = cli("rm", saved, 30, "--yes")
    assert result.code == 0
    assert result.out.startswith("removed step 30  ")
    assert "a restart would use step 20" in result.err
    assert steps(cli, saved) == [10, 20]
    assert hc.latest_checkpoint(saved).name == "step-0000000020"
    removed = [entry for entry in read_journal(saved) if entry["event"] == "removed"]
    assert [(entry["steps"], entry["by"]) for entry in removed] == [([30], "rm")]


def test_copies_on_scratch_that_a_restart_may_use_are_named(cli: Cli, tmp_path: Path) -> None:
    with hc.Checkpointer(tmp_path / "run", scratch=tmp_path / "scratch") as ckpt:
        for step in (1, 2):
            ckpt.save(step, {"n": step}).durable()
    result = cli("rm", tmp_path / "run", 2, "--yes")
    assert "a restart would use step 1; a job with scratch= also looks for copies" in result.err


def test_several_steps_are_named_by_number_and_by_rank_of_merit(cli: Cli, saved: Path) -> None:
    result = cli("rm", saved, "best", 10, "--yes", "--json")
    assert [gone["step"] for gone in result.json["removed"]] == [10, 20]
    assert steps(cli, saved) == [30]


def test_rm_asks_and_a_dry_run_changes_nothing(cli: Cli, saved: Path) -> None:
    asked = cli("rm", saved, 30, answer="n\n")
    assert (asked.code, "Remove 1 checkpoint" in asked.err) == (1, True)
    assert "would remove step 30" in cli("rm", saved, 30, "--dry-run").out
    assert steps(cli, saved) == [10, 20, 30]


def test_a_pinned_step_is_not_removed(cli: Cli, saved: Path) -> None:
    cli("pin", saved, 20)
    result = cli("rm", saved, 10, 20, "--yes")
    assert (result.code, f"hpcckpt unpin {saved} 20" in result.err) == (1, True)
    assert steps(cli, saved) == [10, 20, 30]


def test_a_step_that_a_program_reads_is_not_removed_and_its_reader_is_named(cli: Cli, saved: Path) -> None:
    with held_step(saved / "step-0000000020"):
        (pin,) = (saved / ".pins").iterdir()
        told = f"step-0000000020 is being read by a program: wait for its end, or if it has ended, remove {pin}\n"
        for code, words in ((1, ("rm", saved, 10, 20, "--yes")), (4, ("unpin", saved, 20))):
            result = cli(*words)
            assert (result.code, result.err.endswith(told)) == (code, True)
    assert cli("rm", saved, 20, "--yes").code == 0


def test_a_damaged_step_can_be_removed(cli: Cli, saved: Path, damage: Any) -> None:
    damage.cut(damage.first_file(saved / "step-0000000030"))
    assert cli("rm", saved, 30, "--yes").code == 0
    assert steps(cli, saved) == [10, 20]


@pytest.mark.parametrize(("words", "code"), [(("99",), 4), ((), 2), (("nonsense",), 4)])
def test_a_step_that_does_not_exist_is_an_error(cli: Cli, saved: Path, words: tuple[str, ...], code: int) -> None:
    assert cli("rm", saved, *words, "--yes").code == code
    assert steps(cli, saved) == [10, 20, 30]


def test_rm_waits_for_nobody_who_writes(cli: Cli, busy: Path) -> None:
    assert cli("rm", busy, 10, "--yes").code == 8


@pytest.mark.parametrize(("word", "meant"), [("lst", "list"), ("ls", "list"), ("remove", "rm"), ("tensor", "tensors")])
def test_a_misspelt_verb_is_answered_with_the_verb_that_is_meant(cli: Cli, word: str, meant: str) -> None:
    result = cli(word, "x")
    assert result.code == 2
    assert f"Did you mean '{meant}'" in result.err
    assert "Did you mean" not in cli("qqqqqq").err
    assert "Did you mean 'new'" in cli("plugin", "newe").err


def test_what_other_tools_call_a_verb_means_one_that_exists() -> None:
    assert all(find_verb(verb) and not find_verb(word) for word, verb in MEANT.items())


def completed(environment: Callable[..., dict[str, str]], line: str) -> list[str]:
    """Return what bash is offered for the last word of a line."""
    variables = {"_HPCCKPT_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}
    done = subprocess.run(
        [sys.executable, "-c", "from hpcckpt.cli.app import tool; tool.main(prog_name='hpcckpt')"],
        env=environment(**variables), capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    return [entry.partition(",")[2] for entry in done.stdout.split()]


def test_a_shell_completes_verbs_options_and_steps(saved: Path, environment: Callable[..., dict[str, str]]) -> None:
    assert completed(environment, "hpcckpt ver") == ["verify", "verify-resume"]
    assert "--dry-run" in completed(environment, "hpcckpt rm --d")
    assert completed(environment, f"hpcckpt info {saved} 2") == ["20"]
    assert set(completed(environment, f"hpcckpt rm {saved} ")) == {"latest", "best", "10", "20", "30"}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_the_code_of_each_shell(cli: Cli, shell: str) -> None:
    result = cli("completion", shell)
    assert result.code == 0
    assert f"_HPCCKPT_COMPLETE={shell}_complete" in result.out


def test_the_code_for_bash_is_valid(cli: Cli) -> None:
    assert subprocess.run(["bash", "-n"], input=cli("completion", "bash").out, text=True, check=False).returncode == 0


@pytest.mark.parametrize(("zone", "shown"), [("UTC", "UTC"), ("<+03>-3", "UTC+03"), ("XYZ5", "XYZ")])
def test_times_are_shown_with_their_zone(
    cli: Cli, saved: Path, monkeypatch: pytest.MonkeyPatch, zone: str, shown: str
) -> None:
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        assert f"TIME ({shown})" in cli("list", saved).out
        created = next(line for line in cli("info", saved).out.splitlines() if line.startswith("created"))
        assert created.endswith(f" {shown}")
    finally:
        monkeypatch.undo()
        time.tzset()


def test_list_shows_the_size_of_the_whole_run(cli: Cli, saved: Path) -> None:
    (saved / ".aside-step-0000000009-abc").mkdir()
    (saved / ".aside-step-0000000009-abc" / "x").write_bytes(b"x" * (3 << 20))
    found = cli("list", saved, "--json").json
    own = sum(each["nbytes"] for each in found["checkpoints"])
    assert found["nbytes"] == own + (3 << 20)
    assert "3.0" in cli("list", saved).err.rpartition(" MiB in total")[0][-6:]
