"""``hpcckpt supervise`` without any scheduler: what it says, forwards, and returns."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import hpcckpt as hc

LIMIT_S = 240.0
PROGRAM = """
import sys
from hpcckpt.jobs import child_process as stepping
stepping.STARTUP_S = {young}
from hpcckpt.cli import main
sys.exit(main())
"""
CATCH = """
import signal, sys, time
time.sleep({deaf})
signal.signal(signal.{name}, lambda *_: sys.exit(75))
print("ready", flush=True)
time.sleep(600)
"""


def clean(**more: str) -> dict[str, str]:
    foreign = ("SLURM_", "PBS_", "COBALT_", "OMPI_", "PMI", "PALS_", "HPCCKPT_")
    return {**{name: value for name, value in os.environ.items() if not name.startswith(foreign)}, **more}


def command(*words: object, young: float = 0.0) -> list[str]:
    return [sys.executable, "-c", PROGRAM.format(young=young), "supervise", *map(str, words)]


def supervise(*words: object, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*words), env=clean(**environ), capture_output=True, text=True, timeout=LIMIT_S, check=False
    )  # fmt: skip


@contextmanager
def supervising(*words: object, young: float = 0.0, **environ: str) -> Iterator[subprocess.Popen[str]]:
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command(*words, young=young), env=clean(**environ), stdout=pipe, stderr=pipe, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def catching(name: str) -> tuple[str, ...]:
    """Return a step that ends with 75 on one signal; others kill it."""
    return (sys.executable, "-c", CATCH.format(name=name, deaf=0))


def named(launcher: str, place: Path) -> str:
    """Return a launcher of this name that becomes what it is given."""
    program = place / launcher
    program.write_text('#!/bin/sh\nexec "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    return str(program)


def ended(process: subprocess.Popen[str], number: int) -> tuple[int, str]:
    """Signal it when its step is ready; return how it ends, and what it said."""
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    _, told = process.communicate(timeout=LIMIT_S)
    return process.returncode, told


@pytest.mark.parametrize("code", [0, 1, 3, 75])
def test_its_exit_code_is_that_of_the_step(code):
    assert supervise("--", "sh", "-c", f"exit {code}").returncode == code


def test_a_step_that_a_signal_killed_has_the_code_that_shells_give():
    assert supervise("--", "sh", "-c", "kill -9 $$").returncode == 137


@pytest.mark.parametrize("name", ["SIGUSR1", "SIGUSR2", "SIGTERM"])
def test_what_asks_it_to_stop_goes_on_to_the_step(name):
    with supervising("--", *catching(name)) as process:
        code, told = ended(process, signal.Signals[name])
    assert code == 75
    assert f"signal={name}" in told


def test_mpirun_which_kills_its_ranks_on_term_gets_usr1(tmp_path):
    with supervising("--", named("mpirun", tmp_path), *catching("SIGUSR1")) as process:
        assert ended(process, signal.SIGTERM)[0] == 75


def test_a_launcher_behind_env_is_known_as_one(tmp_path):
    with supervising("--", "env", "-u", "A", "B=1", named("mpirun", tmp_path), *catching("SIGUSR1")) as process:
        assert ended(process, signal.SIGTERM)[0] == 75


@pytest.mark.parametrize("name", ["SIGUSR1", "SIGTERM"])
def test_a_program_that_a_shell_script_waits_for_gets_the_signal(name, tmp_path):
    script = tmp_path / "run.sh"
    script.write_text('"$@"\nexit $?\n', encoding="utf-8")
    with supervising("--", "bash", script, *catching(name)) as process:
        assert ended(process, signal.Signals[name])[0] == 75


def test_a_signal_that_the_step_catches_does_not_wait_for_one_that_it_does_not():
    with supervising("--", *catching("SIGTERM"), young=600.0, HPCCKPT_JOB_END=str(time.time() + 3600)) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGUSR1)
        assert process.stderr is not None
        assert any("signal=SIGUSR1" in line for line in process.stderr)
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_S) == 75


def test_a_blocked_signal_of_a_child_does_not_hang_it():
    blocked = "import os, signal, sys; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD]); "
    blocked += "os.execv(sys.argv[1], sys.argv[1:])"
    words = command("--", "sh", "-c", "sleep 0.5; exit 3")
    found = subprocess.run([sys.executable, "-c", blocked, *words], env=clean(), timeout=LIMIT_S, check=False)
    assert found.returncode == 3


def test_an_end_in_centuries_is_no_fault():
    end = str(time.time() + 300 * 366 * 86400)
    assert supervise("--lead", "60", "--", "sh", "-c", "exit 4", HPCCKPT_JOB_END=end).returncode == 4


def test_a_young_step_is_not_signalled_before_it_can_listen():
    step = "print('ready', flush=True)" + CATCH.format(name="SIGUSR1", deaf=1.0)
    with supervising("--", sys.executable, "-c", step, young=60.0) as process:
        assert ended(process, signal.SIGUSR1)[0] == 75


def test_a_rank_is_not_signalled_before_it_can_listen_though_its_launcher_does(tmp_path):
    step = "print('ready', flush=True)" + CATCH.format(name="SIGUSR1", deaf=1.0)
    launcher = tmp_path / "mpirun"
    launcher.write_text(
        f"#!{sys.executable}\nimport os, signal, subprocess, sys\n"
        "child = subprocess.Popen(sys.argv[1:], env={**os.environ, 'OMPI_COMM_WORLD_RANK': '0'})\n"
        "signal.signal(signal.SIGUSR1, lambda *_: child.send_signal(signal.SIGUSR1))\nsys.exit(child.wait())\n",
        encoding="utf-8",
    )
    launcher.chmod(0o755)
    with supervising("--", launcher, sys.executable, "-c", step, young=60.0) as process:
        assert ended(process, signal.SIGUSR1)[0] == 75


def test_a_step_that_never_listens_is_signalled_all_the_same():
    step = "import time; print('ready', flush=True); time.sleep(600)"
    with supervising("--", sys.executable, "-c", step, young=1.0) as process:
        assert ended(process, signal.SIGUSR1)[0] == 138


def test_a_step_is_asked_to_stop_before_the_job_ends():
    end = time.time() + 3600.0
    with supervising("--lead", "3595", "--", *catching("SIGUSR1"), young=60.0, HPCCKPT_JOB_END=f"{end:.3f}") as process:
        _, told = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 75
    assert time.time() >= end - 3595.0
    assert "signal=SIGUSR1 (3595 s before the end of the job)" in told


def test_it_says_what_the_job_goes_on_from_and_lists_the_checkpoints_at_the_end(tmp_path):
    part = tmp_path / "run" / "cycle-2"
    with hc.Checkpointer(part) as ckpt:
        ckpt.save(7, {"x": np.arange(3)}).result()
    found = supervise("--run", tmp_path / "run", "--", "true", HPCCKPT_JOB_END=f"{time.time() + 3600:.0f}")
    assert found.returncode == 0
    assert "scheduler=none" in found.stderr
    assert re.search(r"restart=0/20 left=(1:00:00|0:5\d:\d\d)", found.stderr)
    assert f"latest={part}/step-0000000007" in found.stderr
    assert "a restart would use step 7" in found.stderr
    assert "latest *" in found.stdout


def test_ranks_find_the_run_the_end_of_the_job_and_the_count_in_their_environment(tmp_path):
    end = f"{time.time() + 3600:.0f}"
    step = "echo $HPCCKPT_RUN $HPCCKPT_JOB_END $HPCCKPT_RESTART_COUNT"
    found = supervise("--run", tmp_path, "--", "sh", "-c", step, HPCCKPT_JOB_END=end, HPCCKPT_RESTART_COUNT="9")
    assert found.stdout.splitlines()[-1] == f"{tmp_path} {end} 0"


def test_a_step_that_finds_its_run_locked_by_a_lost_job_is_started_again(tmp_path):
    count = tmp_path / "count"
    step = f"echo $HPCCKPT_ATTEMPT >>{count}; [ $(wc -l <{count}) -gt 2 ] || exit 8"
    hasty = PROGRAM.replace("stepping\n", "stepping, supervisor\nsupervisor.BUSY_PAUSE_S = 0.2\n", 1)
    words = [sys.executable, "-c", hasty.format(young=0), "supervise", "--", "sh", "-c", step]
    found = subprocess.run(words, env=clean(), capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert found.returncode == 0
    assert found.stderr.count("the run is locked by another job") == 2
    assert len(set(count.read_text().split())) == 3  # each is another start of the step


def test_a_step_whose_run_stays_locked_has_failed(tmp_path):
    hasty = PROGRAM.replace("stepping\n", "stepping, supervisor\nsupervisor.BUSY_S = 0.0\n", 1)
    words = [sys.executable, "-c", hasty.format(young=0), "supervise", "--", "sh", "-c", "exit 8"]
    found = subprocess.run(words, env=clean(), capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert found.returncode == 8
    assert "failed: code 8" in found.stderr


def test_a_program_that_is_not_there_is_named():
    found = supervise("--", "no-such-launcher", "x")
    assert found.returncode == 2
    assert "'no-such-launcher' cannot be started" in found.stderr


def test_it_must_not_be_started_by_a_launcher_itself():
    found = supervise("--", "true", OMPI_COMM_WORLD_RANK="1", OMPI_COMM_WORLD_SIZE="2")
    assert found.returncode == 2
    assert "supervise starts the launcher" in found.stderr


def test_a_dry_run_shows_everything_and_starts_nothing(tmp_path):
    made = tmp_path / "made"
    found = supervise("--dry-run", "--run", tmp_path, "--max-restarts", "5", "--", "touch", made, SLURM_JOB_ID="42")
    assert found.returncode == 0
    assert not made.exists()
    assert f"would start: touch {made}" in found.stderr
    assert "on code 75: checkpointed: restart 1 of at most 5: scontrol requeue 42" in found.stderr
    assert "would set HPCCKPT_RESTART_COUNT=0" in found.stderr
    assert "on code 0: done" in found.stderr


def test_programs_are_told_what_became_of_the_job_and_what_would():
    ended = supervise("--json", "--", "sh", "-c", "exit 3")
    told = json.loads(ended.stdout)
    assert (ended.returncode, told["code"], told["verdict"]["code"], told["scheduler"]) == (3, 3, 3, "none")
    would = json.loads(supervise("--json", "--dry-run", "--", "true", SLURM_JOB_ID="42").stdout)
    assert would["on_code"]["75"]["command"] == ["scontrol", "requeue", "42"]


def test_a_requeue_that_slurm_refuses_is_told_and_the_code_stays_75(tmp_path):
    for name, text in {"scontrol": "echo 'Job is not requeueable' >&2; exit 1", "squeue": "echo RUNNING"}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    found = supervise("--", "sh", "-c", "exit 75", SLURM_JOB_ID="42", PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert found.returncode == 75
    assert "Job is not requeueable" in found.stderr
    assert "submit the job again by hand" in found.stderr
