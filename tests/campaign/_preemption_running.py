"""A job that is asked to stop: how it is started, watched and asked; for the campaign ``preemption``."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hpcckpt as hc
from tests.campaign import _preemption_job as job
from tests.campaign._common import HERE
from tests.campaign._preemption_job import Order, Shown
from tests.support.mpi.launch import clean_environment, find_mpirun

JOB_TIMEOUT_S = 480.0
SCRIPT = HERE.parents[1] / "examples" / "requeue.sh"


class BrokenPromiseError(Exception):
    """What a case found: a verdict, and why."""

    def __init__(self, verdict: Any, text: str) -> None:
        super().__init__(text)
        self.verdict = verdict


@dataclass(frozen=True)
class Request:
    """How a job is asked to stop.

    Attributes
    ----------
    by : str
        Name of a signal, ``HALT`` or ``walltime``.
    whom : str
        Who gets the signal.
    rank : int
        Which rank, if it is one.
    when : str
        What that rank does then.
    later_s : float
        How much later still.
    is_repeated : bool
        Whether the signal comes a second time.
    """

    by: str
    whom: str = "one rank"
    rank: int = 0
    when: str = "any time"
    later_s: float = 0.0
    is_repeated: bool = False

    def __str__(self) -> str:
        by = "a signal" if self.by.startswith("SIG") else self.by
        return f"{by} to {self.whom}, {self.when}" if by == "a signal" else by


@dataclass(frozen=True)
class Plan:
    """One case: a job, and how it is asked to stop.

    Attributes
    ----------
    order : Order
        What the job does.
    request : Request
        How it is asked.
    n_ranks : int
        On how many ranks it runs.
    is_keras : bool
        Whether it is Keras with Horovod, and not a loop with NumPy.
    """

    order: Order
    request: Request
    n_ranks: int
    is_keras: bool

    def __str__(self) -> str:
        return f"{'Keras' if self.is_keras else 'loop'}: {self.request}"


# -- the job ---------------------------------------------------------------------------------------


class Running:
    """A job that was started."""

    def __init__(self, plan: Plan, log: Path) -> None:
        self.plan, self.log = plan, log
        self.order, self.n_ranks = plan.order, plan.n_ranks
        self.began = time.monotonic()
        program = job.HERE.with_name("_preemption_keras_job.py") if plan.is_keras else job.HERE
        command = [sys.executable, str(program), plan.order.to_json()]
        if plan.n_ranks > 1 or plan.is_keras:
            launcher = find_mpirun()
            assert launcher is not None
            command = [launcher, "-n", str(plan.n_ranks), *command]
        if plan.request.whom == "the script":
            command = [str(SCRIPT), *command]
        environment = clean_environment(MAX_RESTARTS="0", TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="")
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )  # in the worker's session, which is ended as a whole

    def shown(self) -> list[Shown]:
        """Return what the ranks show."""
        return [job.read_board(Path(self.order.board), rank) for rank in range(self.n_ranks)]

    def wait_for(self, is_there: Any, timeout_s: float = JOB_TIMEOUT_S) -> bool:
        """Wait until all that is shown is as wanted; return False after a time-out."""
        began = time.monotonic()
        while not is_there(self.shown()):
            if self.process.poll() is not None:
                raise BrokenPromiseError("wrong", f"the job ended with {self.process.returncode}\n{self.tail()}")
            if time.monotonic() - began > timeout_s:
                return False
            time.sleep(0.0005)
        return True

    def wait(self) -> int:
        """Wait for the end; return the exit code."""
        try:
            return self.process.wait(max(0.1, JOB_TIMEOUT_S - (time.monotonic() - self.began)))
        except subprocess.TimeoutExpired:
            for shown in self.shown():
                _send(shown.pid, signal.SIGQUIT)  # they say where they are
            time.sleep(1.0)
            raise BrokenPromiseError("hung", f"the job did not end: {self.shown()}\n{self.tail()}") from None

    def end(self) -> None:
        """Kill what is left."""
        for shown in self.shown() if self.process.poll() is None else []:
            _send(shown.pid, signal.SIGKILL)
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def tail(self) -> str:
        """Return the end of what it printed."""
        return self.log.read_text(errors="replace", encoding="utf-8")[-4000:]


def _send(pid: int, number: int) -> None:
    try:
        if pid > 0:
            os.kill(pid, number)
    except ProcessLookupError:
        pass  # it was faster


def _children(parent: int) -> list[int]:
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            status = (
                Path("/proc", name, "stat").read_text(errors="replace", encoding="utf-8").rpartition(")")[2].split()
            )
        except OSError:
            continue
        if int(status[1]) == parent:
            found.append(int(name))
    return found


def ask(running: Running, request: Request) -> list[Shown]:
    """Ask the job to stop; return what the ranks did right then."""
    before = running.shown()
    if request.by == "HALT":
        hc.preemption.write_halt(running.order.directory, hc.preemption.Halt(), "a test")
    elif request.by != "walltime":
        number = signal.Signals[request.by]
        for _ in range(1 + request.is_repeated):
            for pid in _receivers(running, request, before):
                _send(pid, number)
            time.sleep(0.003 * request.is_repeated)
    return running.shown()


def _receivers(running: Running, request: Request, shown: list[Shown]) -> list[int]:
    ranks = [one.pid for one in shown]
    if request.whom in {"the launcher", "the script"}:
        return [running.process.pid]
    if request.whom == "one rank":
        return [ranks[request.rank]]
    return [pid for rank in ranks for pid in [*_children(rank), rank]] if request.whom == "all processes" else ranks


def is_in(request: Request) -> Any:
    def is_there(shown: list[Shown]) -> bool:
        one = shown[request.rank]
        if request.when == "drain":
            return one.is_draining
        return request.when in {"any time", one.activity}

    return is_there
