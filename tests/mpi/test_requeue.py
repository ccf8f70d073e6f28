"""The example of a loop of one's own, and the shell loop that starts it again as long as it asks for it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import hpcckpt as hc
from tests.support.mpi.launch import LIMIT_S, clean_environment
from tests.support.paths import EXAMPLES

N_STEPS = 60


def run(*command: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, env=clean_environment(**env), capture_output=True, text=True, timeout=LIMIT_S, check=False
    )


def loop(directory: Path, n_steps: int = N_STEPS) -> list[str]:
    return [
        *(sys.executable, str(EXAMPLES / "custom_loop.py"), "--directory", str(directory)),
        *("--steps", str(n_steps), "--pause", "0"),
    ]


def test_a_loop_that_was_stopped_is_started_again_and_ends_with_the_same_bits(tmp_path):
    straight, stopped = tmp_path / "straight", tmp_path / "stopped"
    assert run(*loop(straight)).returncode == 0
    stopped.mkdir()
    hc.preemption.write_halt(stopped, hc.preemption.Halt(after_step=20))
    ended = run(str(EXAMPLES / "requeue.sh"), *loop(stopped))
    assert ended.returncode == 0, ended.stderr
    assert "run 0 ended with 75" in ended.stderr
    assert "run 1 ended with 0" in ended.stderr
    assert "begins after step 20 " in ended.stdout
    for name in ("weights", "momentum"):
        expected, found = (hc.load(hc.latest_checkpoint(place))[name] for place in (straight, stopped))
        assert np.array_equal(expected, found)


def test_a_chain_of_jobs_has_an_end(tmp_path):
    hc.preemption.write_halt(tmp_path, hc.preemption.Halt(after_step=5))
    assert run(str(EXAMPLES / "requeue.sh"), *loop(tmp_path), MAX_RESTARTS="0").returncode == 75


@pytest.mark.parametrize("code", [0, 1, 3])
def test_a_job_that_does_not_ask_for_it_is_not_started_again(code):
    ended = run(str(EXAMPLES / "requeue.sh"), "sh", "-c", f"echo once; exit {code}")
    assert (ended.returncode, ended.stdout) == (code, "once\n")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_job_that_a_signal_ended_ends_the_chain_with_its_code(number):
    ended = run(str(EXAMPLES / "requeue.sh"), "sh", "-c", f"kill -{int(number)} $$")
    assert ended.returncode == 128 + number
    assert f"run 0 ended with {128 + number}" in ended.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR2])
def test_a_signal_reaches_the_job_whose_code_ends_the_chain(number):
    job = ["bash", "-c", "trap 'exit 75' USR1; echo ready; while :; do sleep 0.05; done"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([EXAMPLES / "requeue.sh", *job], env=clean_environment(), **pipes) as chain:
        assert chain.stdout.readline() == "ready\n"
        chain.send_signal(number)
        _, err = chain.communicate(timeout=LIMIT_S)
    assert (chain.returncode, err) == (75, "requeue.sh: run 0 ended with 75\n")


def test_a_signal_while_the_job_is_starting_is_not_lost_nor_final():
    """The job may be no program yet, or have no handler yet: it gets the signal again, or its end is not final."""
    job = ["bash", "-c", "sleep 0.02; trap 'exit 75' USR1; while :; do sleep 0.05; done"]
    for n in range(12):
        with subprocess.Popen([EXAMPLES / "requeue.sh", *job], env=clean_environment()) as chain:
            time.sleep(n * 0.003)  # from before the trap of the script until after that of the job
            chain.send_signal(signal.SIGTERM)
            assert chain.wait(LIMIT_S) in {75, -signal.SIGTERM}


def test_ctrl_c_ends_the_job_too():
    job = ["bash", "-c", "echo $$; exec sleep 600"]
    command = ["env", "--default-signal=INT", EXAMPLES / "requeue.sh", *job]  # it may be ignored where tests run
    with subprocess.Popen(command, env=clean_environment(), stdout=subprocess.PIPE, text=True) as chain:
        pid = int(chain.stdout.readline())
        chain.send_signal(signal.SIGINT)
        assert chain.wait(LIMIT_S) == 130
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_without_a_command_it_shows_how_to_call_it():
    ended = run(str(EXAMPLES / "requeue.sh"))
    assert (ended.returncode, ended.stderr) == (2, "usage: requeue.sh COMMAND...\n")
