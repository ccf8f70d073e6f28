"""``hpcckpt halt``."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import hpcckpt as hc
from hpcckpt.cli.halt import read_moment
from hpcckpt.errors import OptionError
from hpcckpt.format import layout
from hpcckpt.preemption import watch
from hpcckpt.preemption.halt import Halt, read_halt
from hpcckpt.rundir import discovery

Cli = Callable[..., Any]
LIMIT_S = 240.0

JOB = """
import sys, time
import numpy as np
import hpcckpt as hc
from hpcckpt.preemption import watch

state = {"w": np.zeros(8)}
with hc.Checkpointer(sys.argv[1]) as ckpt, watch(ckpt, signals=(), halt_every_s=0.05, verbose=0) as guard:
    for step in range(1, 100_000):
        time.sleep(0.01)
        if step == 1:
            ckpt.save(step, state).result()
        if step == 2:  # where it stops, it is behind the step that was saved
            print("saved", flush=True)
        if guard.should_stop(step):
            guard.save_and_exit(state)
"""


@pytest.fixture
def job(tmp_path: Path, environment: Callable[..., dict[str, str]]) -> Any:
    """A job that runs, has saved step 1, and watches."""
    command = [sys.executable, "-c", JOB, str(tmp_path / "run")]
    with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "saved\n"
        yield process
        process.kill()


def test_a_running_job_saves_exits_with_75_and_takes_the_request_away(cli: Cli, job: Any, tmp_path: Path) -> None:
    result = cli("halt", tmp_path / "run")
    assert result.code == 0
    assert result.err == ""
    assert f"process {job.pid} on " in result.out
    assert result.out.endswith("is asked to save and stop now\n")
    assert job.wait(LIMIT_S) == 75
    assert discovery.latest_step(tmp_path / "run") > 1
    assert not (tmp_path / "run" / "HALT").exists()


def test_a_running_job_stops_behind_the_step_it_is_told(cli: Cli, job: Any, tmp_path: Path) -> None:
    assert cli("halt", tmp_path / "run", "--after-step", 150).code == 0
    assert job.wait(LIMIT_S) == 75
    assert discovery.latest_step(tmp_path / "run") >= 150


def test_a_request_that_was_taken_back_stops_nobody(cli: Cli, job: Any, tmp_path: Path) -> None:
    cli("halt", tmp_path / "run", "--at", "+1h")
    result = cli("halt", tmp_path / "run", "--cancel", "--json")
    assert (result.code, result.json["cancelled"]) == (0, True)
    assert result.json["before"].startswith("at 20")
    with pytest.raises(subprocess.TimeoutExpired):
        job.wait(0.5)


def test_cancel_reports_the_request_that_it_cancelled(cli: Cli, saved: Path) -> None:
    cli("halt", saved, "--after-step", 50)
    assert cli("halt", saved, "--cancel").out == f"{saved}/HALT: the request to stop is cancelled: after-step 50\n"


def test_there_must_be_something_to_take_back(cli: Cli, saved: Path) -> None:
    result = cli("halt", saved, "--cancel")
    assert result.code == 4
    assert "no job is asked" in result.err


@pytest.mark.parametrize(
    ("words", "halt"),
    [
        ([], Halt()),
        (["--after-step", 40], Halt(40)),
        (["--at", "2999-01-01T00:00+00:00"], Halt(at=32472144000.0)),
    ],
)
def test_the_file_says_what_was_asked(cli: Cli, saved: Path, words: list[Any], halt: Halt) -> None:
    result = cli("halt", saved, *words, "--json")
    assert result.code == 6
    assert read_halt(saved) == halt
    assert result.json["asked"] == (str(halt) or "now")
    assert result.json["file"] == str(saved / layout.HALT)
    assert "hpcckpt halt" in (saved / layout.HALT).read_text(encoding="utf-8").splitlines()[0]


def test_a_new_request_takes_the_place_of_an_older_one(cli: Cli, saved: Path) -> None:
    cli("halt", saved, "--after-step", 90)
    result = cli("halt", saved, "--after-step", 60)
    assert "it replaces: after-step 90" in result.err
    assert read_halt(saved) == Halt(60)


def test_it_says_when_no_job_is_there_and_when_the_step_is_past(cli: Cli, saved: Path) -> None:
    result = cli("halt", saved, "--after-step", 20)
    assert "step 30 exists already: a job that looks for HALT stops at once" in result.err
    assert "no job is writing here now: the next one that looks for HALT will save and stop" in result.err


def test_in_a_run_of_cycles_a_request_that_was_handed_on_counts_too(cli: Cli, save: Any, tmp_path: Path) -> None:
    cycle = save(tmp_path / "cycle-1", n_ranks=1)
    (cycle / "HALT").write_text("after-step 500\n", encoding="utf-8")
    result = cli("halt", tmp_path, "--after-step", 70)
    assert "it replaces: after-step 500" in result.err
    assert not (cycle / "HALT").exists()
    (tmp_path / "HALT").rename(cycle / "HALT")  # as the training does
    assert cli("halt", tmp_path, "--cancel").code == 0
    assert not (cycle / "HALT").exists()


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--after-step", "5", "--at", "+1h"], 2, "exclude one another"),
        (["--at", "yesterday"], 2, "is no moment"),
        (["--at", "2020-01-01"], 2, "is past"),
        (["--at", "+5"], 2, "is no duration"),
        (["--at", "+999999d"], 2, "less than 1000 years"),
        (["--at", "+360000d"], 2, "is after the year 2999"),
        (["--after-step", "-1"], 2, "range"),
    ],
)
def test_what_makes_no_sense_writes_nothing(cli: Cli, saved: Path, words: list[str], code: int, said: str) -> None:
    result = cli("halt", saved, *words)
    assert (result.code, said in result.err) == (code, True)
    assert not (saved / "HALT").exists()


def test_a_run_in_which_no_job_has_begun_is_said_so_with_what_to_do(cli: Cli, tmp_path: Path) -> None:
    result = cli("halt", tmp_path / "none")
    assert result.code == 4
    assert f"{tmp_path}/none does not exist: no job has begun there" in result.err
    assert "scancel" in result.err
    assert not (tmp_path / "none").exists()
    (tmp_path / "file").touch()
    assert "file is not a directory" in cli("halt", tmp_path / "file").err
    assert cli("halt", tmp_path / "none", "--cancel").code == 4


def test_a_job_that_begins_where_a_request_waits_stops_soon(
    cli: Cli, tmp_path: Path, environment: Callable[..., dict[str, str]]
) -> None:
    (tmp_path / "run").mkdir()
    result = cli("halt", tmp_path / "run")
    assert result.code == 6
    assert "no job is writing here now: the next one that looks for HALT will save and stop" in result.err
    command = [sys.executable, "-c", JOB, str(tmp_path / "run")]
    ended = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert ended.returncode == 75, ended.stderr
    assert not (tmp_path / "run" / "HALT").exists()


def test_a_time_of_day_is_the_next_one() -> None:
    noon = time.mktime((2026, 7, 1, 12, 0, 0, 0, 0, -1))
    assert read_moment("12:30", noon) == noon + 1800
    assert read_moment("11:30", noon) == noon + 23.5 * 3600
    assert read_moment("+90m", noon) == noon + 5400
    with pytest.raises(OptionError):
        read_moment("25:00", noon)


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The time zone of Berlin, where clocks change in the nights to 2026-03-29 and 2026-10-25."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.parametrize(("day", "hours"), [((2026, 3, 28), 21.5), ((2026, 10, 24), 23.5), ((2026, 6, 1), 22.5)])
def test_a_time_of_day_is_that_of_the_clock_when_it_was_changed_meanwhile(
    berlin: None, day: tuple[int, int, int], hours: float
) -> None:
    asked = time.mktime((*day, 20, 0, 0, 0, 0, -1))
    assert (read_moment("18:30", asked) - asked) / 3600 == hours


TWO_HOURS_OF_2 = 1_792_886_400
"""2026-10-25 02:00 for the first time; an hour later clocks show it again."""


@pytest.mark.parametrize("text", ["02:30", "2026-10-25T02:30"])
@pytest.mark.parametrize(("asked_min", "meant_min"), [(-10, 30), (15, 30), (45, 90), (75, 90)])
def test_of_a_time_that_clocks_show_twice_the_one_to_come_is_meant(
    berlin: None, text: str, asked_min: int, meant_min: int
) -> None:
    assert (read_moment(text, TWO_HOURS_OF_2 + 60.0 * asked_min) - TWO_HOURS_OF_2) / 60 == meant_min


def test_a_job_that_does_not_look_for_the_file_is_said_not_to_listen(cli: Cli, tmp_path: Path) -> None:
    with hc.Checkpointer(tmp_path / "run") as ckpt:
        ckpt.save(1, {"w": 1.0}).result()
        result = cli("halt", tmp_path / "run", "--json")
        assert (result.code, result.json["listening"]) == (6, False)
        assert "this job is not known to look for HALT" in cli("halt", tmp_path / "run").err
        with watch(ckpt, signals=(), verbose=0):
            assert cli("halt", tmp_path / "run", "--json").json["listening"]
        assert cli("halt", tmp_path / "run").code == 6
        assert cli("halt", tmp_path / "run", "--cancel").code == 0
