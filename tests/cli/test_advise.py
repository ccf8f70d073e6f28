"""``hpcckpt advise``."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpcckpt.interval import daly
from tests.support.report.made_runs import MadeRun, long_run

Cli = Callable[..., Any]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return long_run(tmp_path / "made", 80)


def test_it_says_how_often_to_save_in_time_and_in_steps(cli: Cli, run: Path) -> None:
    result = cli("advise", run, "--mtbf", "4h")
    assert result.code == 0
    lines = dict(line.split("  ", 1) for line in result.out.splitlines()[:6])
    assert lines["a failure every"].strip() == "4 h (as you say)"
    assert "steps)" in lines["save every"]
    assert "a restore takes" in lines, "the journal knows nothing of the start of a job"
    assert "a restart takes  3 min" in cli("advise", run, "--mtbf", "4h", "--restart", "3m").out
    assert "advised *" in result.out
    assert "at present" in result.out


def test_the_cost_is_that_of_the_slowed_batches_without_the_first_save_of_each_job(cli: Cli, run: Path) -> None:
    found = cli("advise", run, "--mtbf", "4h", "--json").json
    assert found["cost_s"] == pytest.approx(0.6, rel=0.1)
    assert found["interval_s"] == pytest.approx(daly(found["cost_s"], 4 * 3600))
    assert found["restart_s"] == pytest.approx(11.0)
    assert found["now_s"] == pytest.approx(299.4, rel=0.01)
    (advised,) = [choice for choice in found["choices"] if choice["what"] == "advised"]
    assert advised["steps"] == pytest.approx(found["interval_s"] * 500 / 300, rel=0.02)


def test_a_simulation_agrees(cli: Cli, run: Path) -> None:
    found = cli("advise", run, "--mtbf", "1h", "--simulate", "--json").json
    assert found["simulated"]["n_failures"] == 1000
    assert 0 <= found["simulated"]["above_best"] < 0.05
    assert found["simulated"]["lost"] == pytest.approx(found["choices"][3]["lost"], rel=0.1)
    assert "1,000 failures" in cli("advise", run, "--mtbf", "1h", "--simulate").out


def test_three_jobs_that_died_say_how_often_they_do(cli: Cli, tmp_path: Path) -> None:
    made = MadeRun(tmp_path / "dying")
    for _ in range(4):
        made.start(after_s=60.0)
        made.train(12)
    found = cli("advise", made.write(), "--json").json
    assert found["mtbf_source"] == "journal"
    assert found["mtbf_s"] == pytest.approx(3600, rel=0.01)


def test_a_picture_is_drawn(cli: Cli, run: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    result = cli("advise", run, "--mtbf", "4h", "--plot", tmp_path / "advice.png")
    assert result.code == 0
    assert (tmp_path / "advice.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["advice.png", "made"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--mtbf", "12"], "--mtbf: '12' is no duration"),
        (["--mtbf", "-3h"], "--mtbf"),
        (["--cost", "0s"], "--cost"),
        (["--plot", "a.pdf"], "ends in .png"),
    ],
)
def test_what_makes_no_sense_is_said_so(cli: Cli, run: Path, words: list[str], said: str) -> None:
    result = cli("advise", run, *words)
    assert result.code == 2
    assert said in result.err


def test_a_run_without_a_journal_needs_a_cost(cli: Cli, saved: Path) -> None:
    (saved / "journal.jsonl").unlink(missing_ok=True)
    result = cli("advise", saved)
    assert result.code == 4
    assert "pass --cost" in result.err
    assert cli("advise", saved, "--cost", "5s", "--mtbf", "1h").code == 0


def test_no_run_is_said_so(cli: Cli, tmp_path: Path) -> None:
    assert cli("advise", tmp_path / "none").code == 4


def test_a_picture_replaces_no_pipe(cli: Cli, run: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    os.mkfifo(tmp_path / "pipe.png")
    assert cli("advise", run, "--plot", tmp_path / "pipe.png").code == 2
    assert (tmp_path / "pipe.png").is_fifo()
