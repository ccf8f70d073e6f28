"""``hpcckpt watch``."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpcckpt as hc
from hpcckpt.tools.report.read_history import read_run_history
from hpcckpt.tools.report.watch_view import frame_of, lines_of, news
from tests.support.report.made_runs import MadeRun, long_run

Cli = Callable[..., Any]
LIMIT_S = 240.0

JOB = """
import sys, time
import numpy as np
import hpcckpt as hc

with hc.Checkpointer(sys.argv[1]) as ckpt:
    for step in range(1, int(sys.argv[2]) + 1):
        ckpt.save(step, {"w": np.zeros(1000), "epoch": step // 5}, metrics={"loss": 1.0 / step}).result()
        if step == 3:
            print("saved", flush=True)
        time.sleep(0.05)
"""


@pytest.fixture
def job(tmp_path: Path, environment: Callable[..., dict[str, str]]) -> Iterator[subprocess.Popen[str]]:
    """A job that saves twenty times a second, and has saved three times."""
    command = [sys.executable, "-c", JOB, str(tmp_path / "run"), "30000"]
    with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "saved\n"
        yield process
        process.kill()


@pytest.fixture
def watching(environment: Callable[..., dict[str, str]]) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start the command in a separate process: ``watching(directory, …)``."""
    started: list[subprocess.Popen[str]] = []

    def start(*words: object) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "hpcckpt", "watch", *map(str, words)]
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(command, env=environment(), stdout=pipe, stderr=pipe, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_one_frame_says_what_a_running_job_does(cli: Cli, job: Any, tmp_path: Path) -> None:
    frame = cli("watch", tmp_path / "run", "--once", "--json").json
    assert frame["state"] == "running"
    assert frame["writing"].startswith(f"process {job.pid} on ")
    assert frame["last"]["step"] >= 3
    assert frame["metrics"] == {"loss": pytest.approx(1 / frame["last"]["step"])}
    assert 0 < frame["steps_per_second"] < 20, "it waits for a twentieth of a second at each step"
    assert frame["next_s"] <= frame["interval_s"]
    result = cli("watch", tmp_path / "run", "--once")
    assert f"running for {result.out.partition('running for ')[2][:1]}" in result.out
    assert "next save" in result.out


def test_a_job_that_was_killed_is_not_running(cli: Cli, job: Any, tmp_path: Path) -> None:
    job.kill()
    job.wait()
    frame = cli("watch", tmp_path / "run", "--once", "--json").json
    assert (frame["state"], frame["writing"], frame["n_deaths"]) == ("died", "", 1)
    words = cli("watch", tmp_path / "run", "--once").out
    assert f"the last job died: process {job.pid} on " in words
    assert "was killed: it does not exist any more, and has left its lock" in words


@pytest.mark.parametrize("node_is_ahead_s", [40.0, 7200.0])
def test_the_last_job_is_the_one_that_began_last_whatever_the_clocks_of_nodes_show(
    node_is_ahead_s: float, cli: Cli, tmp_path: Path
) -> None:
    run = MadeRun(tmp_path / "run")
    run.now += node_is_ahead_s
    run.start()
    run.train(2, interval_s=5.0)
    run.now -= node_is_ahead_s
    run.start(after_s=10.0)
    run.train(2, interval_s=5.0)
    run.stop()
    result = cli("watch", run.write(), "--until-end", "--json")
    frame = json.loads(result.out)
    assert (result.code, frame["state"], frame["job"]["host"]) == (0, "ended", "node02")
    assert [save["step"] for save in frame["saves"]] == [2000, 1500, 1000, 500]


def test_a_job_that_was_asked_to_stop_is_shown_so(cli: Cli, job: Any, tmp_path: Path) -> None:
    cli("halt", tmp_path / "run", "--after-step", 99_000)
    assert "to stop: after-step 99000" in cli("watch", tmp_path / "run", "--once").out


def test_without_a_terminal_lines_come_at_once_and_interrupting_exits_with_130(
    job: Any, watching: Any, tmp_path: Path
) -> None:
    watch = watching(tmp_path / "run", "--every", "0.1")
    lines: list[str] = []
    while sum("saved step" in line for line in lines) < 5:
        lines.append(watch.stdout.readline())
        assert lines[-1]
    steps = [int(line.partition("saved step ")[2].partition(",")[0]) for line in lines if "saved step" in line]
    assert steps == list(range(steps[0], steps[0] + 5))
    assert "loss=" in lines[-1]
    watch.send_signal(signal.SIGINT)
    assert watch.wait(LIMIT_S) == 130
    assert watch.stderr.read() == ""
    assert job.poll() is None


def test_json_is_one_document_a_line(job: Any, watching: Any, tmp_path: Path) -> None:
    watch = watching(tmp_path / "run", "--every", "0.1", "--json")
    first, second = (json.loads(watch.stdout.readline()) for _ in range(2))
    assert second["time"] > first["time"]
    assert second["last"]["step"] >= first["last"]["step"]


def test_json_of_one_look_is_one_document_on_one_line(cli: Cli, saved: Path) -> None:
    result = cli("watch", saved, "--once", "--json")
    assert result.out.count("\n") == 1
    assert result.json["last"]["step"] == 30


def test_it_waits_for_a_run_that_has_saved_nothing_yet_and_ends_with_the_job(watching: Any, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    watch = watching(tmp_path / "run", "--every", "0.1", "--until-end")
    assert "nothing is saved there yet; waiting" in watch.stderr.readline()
    with hc.Checkpointer(tmp_path / "run") as ckpt:
        ckpt.save(1, {"w": 1.0})
        ckpt.wait()
        assert any("running" in line for line in iter(watch.stdout.readline, "")), "it has seen the job"
    assert watch.wait(LIMIT_S) == 0
    assert "job ended" in watch.stdout.read()


def test_it_ends_with_1_when_the_job_has_died(job: Any, watching: Any, tmp_path: Path) -> None:
    watch = watching(tmp_path / "run", "--every", "0.1", "--until-end")
    assert watch.stdout.readline()
    job.kill()
    job.wait()
    assert watch.wait(LIMIT_S) == 1
    assert f"the last job died: process {job.pid} on " in watch.stderr.read()


def test_it_waits_for_a_directory_that_does_not_exist_yet(watching: Any, tmp_path: Path) -> None:
    watch = watching(tmp_path / "run", "--every", "0.1", "--until-end")
    assert watch.stderr.readline() == f"{tmp_path / 'run'}: does not exist yet; waiting\n"
    with hc.Checkpointer(tmp_path / "run") as ckpt:
        ckpt.save(1, {"w": 1.0}).result()
    assert watch.wait(LIMIT_S) == 0


@pytest.mark.parametrize(("code", "state"), [(3, "died"), (0, "ended")])
def test_the_exit_code_of_a_job_that_ends_itself_is_shown(code: int, state: str, cli: Cli, tmp_path: Path) -> None:
    def train() -> None:
        with hc.Checkpointer(tmp_path / "run") as ckpt:
            ckpt.save(1, {"w": 1.0}).result()
            ckpt.wait()
            sys.exit(code)

    with pytest.raises(SystemExit):
        train()
    frame = cli("watch", tmp_path / "run", "--once", "--json").json
    assert frame["state"] == state
    assert ("SystemExit, exit code 3" in frame["state_words"]) == (code == 3)
    lines = cli("watch", tmp_path / "run", "--once").out.splitlines()
    assert lines[-1].split(maxsplit=1) == ["kept", "1 step, 0 B"]
    assert ("the last job ended with an error" in frame["state_words"]) == (code == 3)


def test_a_job_on_another_node_that_is_silent_is_said_to_have_no_heartbeat(cli: Cli, saved: Path) -> None:
    journal = saved / "journal.jsonl"
    journal.write_text(
        "".join(f"{line}\n" for line in journal.read_text(encoding="utf-8").splitlines() if '"end"' not in line),
        encoding="utf-8",
    )
    holder = {"host": "node7", "pid": 12, "boot_id": "x", "started": "1", "job_id": "9", "nonce": "n"}
    (saved / ".lock").write_text(json.dumps(holder), encoding="utf-8")
    os.utime(saved / ".lock", (time.time() - 3600,) * 2)
    words = cli("watch", saved, "--once").out
    assert "the last job died: no heartbeat of process 12 on node7, job 9 for 1 h" in " ".join(words.split())


def test_a_job_whose_first_save_failed_can_be_seen(cli: Cli, tmp_path: Path) -> None:
    with hc.Checkpointer(tmp_path / "run", nan_guard=True) as ckpt, pytest.raises(FloatingPointError):
        ckpt.save(7, {"w": np.array([np.nan])}).result()
    result = cli("list", tmp_path / "run")
    assert result.code == 4
    assert "the last save, of step 7, failed: NaN or infinite values in 'w'" in result.err
    assert "step 7: NaN" in cli("watch", tmp_path / "run", "--once").out
    assert cli("report", tmp_path / "run", "--json").json["failures"][0]["step"] == 7


def test_on_a_terminal_one_view_is_kept_up_to_date(
    job: Any, tmp_path: Path, environment: Callable[..., dict[str, str]]
) -> None:
    pexpect = pytest.importorskip("pexpect")
    words = ["-m", "hpcckpt", "watch", str(tmp_path / "run"), "--every", "0.1"]
    variables = environment(TERM="xterm", COLUMNS="100")
    variables.pop("NO_COLOR", None)
    screen = pexpect.spawn(sys.executable, words, env=variables, dimensions=(40, 100), timeout=LIMIT_S)
    screen.expect("running for")
    screen.expect("BANDWIDTH")
    screen.expect("kept")
    screen.sendintr()
    screen.expect(pexpect.EOF)
    screen.wait()
    screen.close()
    assert screen.exitstatus == 130
    assert b"Traceback" not in (screen.before or b"")


def test_it_reads_and_changes_nothing(cli: Cli, saved: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in sorted(saved.rglob("*"))}
    assert cli("watch", saved, "--once").code == 0
    assert {path: path.stat().st_mtime_ns for path in sorted(saved.rglob("*"))} == before


def test_no_run_is_said_so(cli: Cli, tmp_path: Path) -> None:
    assert cli("watch", tmp_path / "none", "--once").code == 4
    assert cli("watch", tmp_path, "--once").code == 4
    assert "holds neither steps nor a journal" in cli("watch", tmp_path, "--once").err


# -- frames ----------------------------------------------------------------------------------------


def held(directory: Path) -> Any:
    """Hold the lock of a run."""
    from hpcckpt.rundir.lock import RunLock

    return RunLock.take(directory)


@pytest.mark.parametrize(
    ("after_s", "words", "is_late"),
    [(100, "in 3 min 20 s", False), (400, "due 1 min 40 s ago", False), (2000, "LATE: due", True)],
)
def test_a_save_is_expected_by_the_usual_interval(tmp_path: Path, after_s: float, words: str, is_late: bool) -> None:
    made = MadeRun(tmp_path)
    made.start()
    made.train(5)
    with held(made.write()):
        frame = frame_of(read_run_history(tmp_path), made.now + after_s)
    assert frame.is_late == is_late
    assert words in dict(lines_of(frame))["next save"]


def test_time_left_is_that_of_the_job_this_command_runs_in(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = MadeRun(tmp_path)
    made.start()
    made.train(3)
    made.write()
    monkeypatch.setenv("SLURM_JOB_END_TIME", str(int(time.time()) + 3600 + 600))
    with held(tmp_path):
        monkeypatch.setenv("SLURM_JOB_ID", "9999")
        assert "time left" not in cli("watch", tmp_path, "--once").out
        monkeypatch.setenv("SLURM_JOB_ID", "4711")
        assert "time left  1 h" in cli("watch", tmp_path, "--once").out


def test_news_are_told_once_and_in_order(tmp_path: Path) -> None:
    made = MadeRun(tmp_path)
    made.start()
    made.train(3)
    before = read_run_history(made.write())
    made.train(2, fails=(1,))
    made.stop("USR1 on rank 0")
    after = read_run_history(made.write())
    lines = [line.split(" ", 3)[3] for line in news(before, after)]
    assert [line.split(",")[0].split(":")[0] for line in lines] == [
        "saved step 2000",
        "failed step 2500",
        "job preempted",
    ]
    assert news(after, after) == []


def test_a_last_save_that_failed_is_shown(tmp_path: Path) -> None:
    made = MadeRun(tmp_path)
    made.start()
    made.train(3, fails=(2,))
    assert "step 1500: no room" in dict(lines_of(frame_of(read_run_history(made.write()), made.now)))["failed"]
    made.train(1)
    assert "failed" not in dict(lines_of(frame_of(read_run_history(made.write()), made.now)))


def test_names_steer_no_terminal(cli: Cli, tmp_path: Path) -> None:
    made = MadeRun(tmp_path)
    made.start()
    made.train(2, metrics={"\x1b]0;evil\x07[bold]x": 1.0})
    made.write()
    assert "\x1b]" not in cli("watch", tmp_path, "--once").out
    from rich.console import Console

    from hpcckpt.tools.report.watch_view import panel_of

    console = Console(file=io.StringIO(), record=True, width=120)
    console.print(panel_of(frame_of(read_run_history(tmp_path), made.now)))
    shown = console.export_text()
    assert "[bold]x" in shown, "nor is a name markup"
    assert "\x1b" not in shown


def test_three_hundred_saves_are_read_quickly(tmp_path: Path) -> None:
    run = long_run(tmp_path / "run", 1200)

    def cpu_seconds() -> float:
        began = time.process_time()
        read_run_history(run)
        return time.process_time() - began

    assert any(cpu_seconds() < 1.0 for _ in range(10)), "what shares caches and cores with it costs it time as well"
