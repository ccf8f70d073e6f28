"""Standard streams that are closed, full, or read by no process: exit codes do not depend on them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

LIMIT_S = 240.0


def exit_code(program: str, redirected: str, **more: str) -> int:
    """Run a program whose streams a shell redirects, buffered as Python does by default; return its exit code."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    words = ["sh", "-c", f'exec "$0" -c "$1" {redirected}', sys.executable, program]
    return subprocess.run(words, env={**environ, **more}, timeout=LIMIT_S, check=False).returncode


@pytest.mark.parametrize("redirected", ["2>/dev/full", "2>&-"])
def test_a_message_that_cannot_be_written_is_dropped(redirected: str) -> None:
    program = "import sys; from hpcckpt.core.std_streams import write_message; write_message('said'); sys.exit(75)"
    assert exit_code(program, redirected) == 75


def test_a_message_to_a_pipe_without_a_reader_is_dropped() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    program = "import sys; from hpcckpt.core.std_streams import write_message; write_message('said'); sys.exit(75)"
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    words = [sys.executable, "-c", program]
    assert subprocess.run(words, stderr=writer, env=environ, timeout=LIMIT_S, check=False).returncode == 75
    os.close(writer)


@pytest.mark.parametrize("redirected", [">/dev/full 2>/dev/full", ">&- 2>&-", ">/dev/full 2>&-"])
def test_what_is_buffered_does_not_change_the_exit_code_of_a_program(redirected: str) -> None:
    program = (
        "import logging, sys; from hpcckpt.core.std_streams import flush_or_discard\n"
        "print('buffered'); logging.warning('said'); flush_or_discard(); sys.exit(75)"
    )
    assert exit_code(program, redirected) == 75


def test_text_after_a_disk_was_full_is_written(tmp_path: Path) -> None:
    program = (
        "import os, sys; from hpcckpt.core.std_streams import write_message\n"
        "write_message('lost'); os.dup2(os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT), 2); write_message('written')"
    )
    with open("/dev/full", "wb") as full:
        subprocess.run([sys.executable, "-c", program, str(tmp_path / "log")], stderr=full, timeout=LIMIT_S, check=True)
    assert (tmp_path / "log").read_text(encoding="utf-8") == "written\n"


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_no_file_is_opened_in_the_place_of_a_closed_stream(closed: str) -> None:
    program = (
        "import os, sys; from hpcckpt.core.std_streams import open_closed_descriptors\n"
        "open_closed_descriptors(); sys.exit(os.open('/dev/null', os.O_RDONLY) > 2)"
    )
    assert exit_code(program, closed) == 1


def test_a_program_that_stops_for_a_requeue_exits_with_75_though_its_log_is_full(tmp_path: Path) -> None:
    program = (
        "import os, sys, numpy as np, hpcckpt as hc\n"
        "ckpt = hc.Checkpointer(os.environ['RUN'])\n"
        "guard = hc.preemption.watch(ckpt, signals=(), halt_every_s=0.01)\n"
        "step = 0\n"
        "while not guard.should_stop(step := step + 1):\n"
        "    pass\n"
        "print('buffered')\n"
        "guard.save_and_exit({'w': np.zeros(3)})\n"
    )
    run = tmp_path / "run"
    run.mkdir()
    (run / "HALT").touch()
    assert exit_code(program, ">/dev/full 2>/dev/full", RUN=str(run)) == 75
