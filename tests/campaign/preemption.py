"""Jobs that are asked to stop, at any moment: one durable step, the same on all ranks, and exit code 75.

One case is one job (:mod:`_preemption_job`) that trains, validates and saves until it is asked to stop: by a signal to
one rank, to all, to all processes of the job, or to the launcher; by the file ``HALT``; or by the end of its walltime.
It is asked while a rank warms up, computes, validates, or while a save drains.  Then all that is visible is read, and
the next job, on another number of ranks, must go on from the step that this one stopped at.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import _preemption_job as job
import numpy as np
from _common import HERE, Campaign, Case, Outcome
from _preemption_job import Order, Shown

import hpcckpt as hc
from hpcckpt import discovery
from hpcckpt.loading import open_step
from hpcckpt.testing.ranks import run_ranks

sys.path.insert(0, str(HERE.parent / "mpi"))

from mpi_launch import clean_environment, find_mpirun

JOB_TIMEOUT_S = 60.0
SITUATIONS = ("warm-up", "step", "validation", "drain", "any time")
RESERVE_S = 2.0


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


# -- the job ---------------------------------------------------------------------------------------


class Running:
    """A job that was started."""

    def __init__(self, order: Order, n_ranks: int, log: Path) -> None:
        self.order, self.n_ranks, self.log = order, n_ranks, log
        self.began = time.monotonic()
        command = [sys.executable, str(job.HERE), order.to_json()]
        if n_ranks > 1:
            launcher = find_mpirun()
            assert launcher is not None
            command = [launcher, "-n", str(n_ranks), *command]
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                command, env=clean_environment(), stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )  # in the worker's session, which is ended as a whole

    def shown(self) -> list[Shown]:
        """Return what the ranks show."""
        return [job.read_board(Path(self.order.board), rank) for rank in range(self.n_ranks)]

    def wait_for(self, is_there: Any, timeout_s: float = JOB_TIMEOUT_S) -> bool:
        """Wait until all that is shown is as wanted; say whether it came to that."""
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
        return self.log.read_text(errors="replace")[-4000:]


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
            status = Path("/proc", name, "stat").read_text(errors="replace").rpartition(")")[2].split()
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
    if request.whom == "the launcher":
        return [running.process.pid]
    if request.whom == "one rank":
        return [ranks[request.rank]]
    return [pid for rank in ranks for pid in [*_children(rank), rank]] if request.whom == "all processes" else ranks


def _is_in(request: Request) -> Any:
    def is_there(shown: list[Shown]) -> bool:
        one = shown[request.rank]
        if request.when == "drain":
            return one.is_draining
        return request.when in {"any time", one.activity}

    return is_there


# -- one case --------------------------------------------------------------------------------------


def draw(case: Case) -> tuple[int, Order, Request]:
    """Draw a job, and how it is asked to stop."""
    rng = case.rng
    n_ranks = rng.choice([1, 2, 2, 2, 3, 3, 4])
    by = rng.choices(["SIGTERM", "SIGUSR1", "SIGUSR2", "HALT", "walltime"], [4, 3, 2, 1, 1])[0]
    whom = rng.choices(["one rank", "all ranks", "all processes", "the launcher"], [5, 3, 2, 2])[0]
    if whom == "the launcher" and (n_ranks == 1 or by == "SIGTERM"):  # on SIGTERM it kills its ranks itself
        whom = "all ranks"
    when = rng.choice(SITUATIONS)
    request = Request(by, whom, rng.randrange(n_ranks), when, rng.choice([0, 0.002, 0.02]), rng.random() < 0.2)
    paths = {name: str(case.scratch / name) for name in ("directory", "diary", "board")}
    options: dict[str, Any] = {"halt_every_s": 0.05 if by == "HALT" else 10.0}
    if by == "walltime":
        options |= {"job_end": time.time() + RESERVE_S + 3.0, "reserve": RESERVE_S}
    order = Order(
        **paths,
        is_synchronous=rng.random() < 0.8,
        warm_up_s=0.3 if when == "warm-up" else 0.0,
        step_s=rng.choice([0.001, 0.004, 0.02]),
        drain_s=0.15 if when == "drain" else rng.choice([0, 0, 0.02]),
        save_every=rng.choice([3, 5, 50]) if when != "drain" else 5,
        validate_every=rng.choice([2, 10]),
        n_validation=rng.choice([2, 10]),
        stops_in_validation=rng.random() < 0.5,
        stops_in_warm_up=rng.random() < 0.5,
        saves_first=rng.random() < 0.5,
        has_worker=rng.random() < 0.4 or whom == "all processes",
        seed=rng.randrange(1 << 30),
        watch=options,
    )
    return n_ranks, order, request


def run(case: Case) -> Outcome:
    """Run a job, ask it to stop, and look at what it left."""
    n_ranks, order, request = draw(case)
    job.make_board(Path(order.board))
    Path(order.directory).mkdir()
    running = Running(order, n_ranks, case.scratch / "log")
    pace = "in step" if order.is_synchronous else "apart"
    try:
        figures = stop(running, request, case)
        return Outcome("good", str(request), figures={**figures, "ranks": float(n_ranks)})
    except BrokenPromiseError as broken:
        return Outcome(broken.verdict, str(request), f"{broken}\n{n_ranks} ranks, {pace}, {request}\n{order}")
    finally:
        running.end()


def stop(running: Running, request: Request, case: Case) -> dict[str, float]:
    """Ask the job to stop when it is time, and check how it ends."""
    assert running.wait_for(lambda shown: all(one.activity != "nothing" for one in shown)), running.tail()
    if request.when == "any time":
        time.sleep(case.rng.uniform(0, 0.5))
    was_seen = running.wait_for(_is_in(request), 5.0)
    time.sleep(request.later_s)
    shown = ask(running, request)
    asked = time.monotonic()
    code = running.wait()
    seconds = time.monotonic() - asked
    if code != hc.preemption.EXIT_CODE:
        raise BrokenPromiseError("wrong", f"exit code {code}\n{running.tail()}")
    step = check_told(running)
    begun = max(one.step for one in shown)
    late = step - begun
    is_bounded = running.order.is_synchronous and request.by.startswith("SIG") and request.whom != "the launcher"
    if is_bounded and late > 1 + has_no_boundary(running.order, shown):
        raise BrokenPromiseError("wrong", f"step {begun} was going on, and step {step} is the last\n{running.tail()}")
    if request.by == "walltime":
        left = running.order.watch["job_end"] - time.time()
        if left < 0:
            raise BrokenPromiseError("wrong", f"the job ended {-left:.1f} s after its walltime\n{running.tail()}")
    check_steps(running, step)
    check_goes_on(Path(running.order.directory), step, case.rng.choice([1, 2, 3]))
    figures = {"situation met": float(was_seen)}
    return figures | ({"steps later": float(late), "seconds": seconds} if is_bounded else {})


def has_no_boundary(order: Order, shown: list[Shown]) -> bool:
    """Say whether a rank is where no boundary comes before the next step has ended."""
    activities = {one.activity for one in shown}
    return (not order.stops_in_validation and "validation" in activities) or (
        not order.stops_in_warm_up and "warm-up" in activities
    )


def check_told(running: Running) -> int:
    """Check that all ranks stopped at one step; return it."""
    told = job.read_diary(Path(running.order.diary))
    if sorted(line["rank"] for line in told) != list(range(running.n_ranks)):
        raise BrokenPromiseError("wrong", f"not all ranks stopped: {told}\n{running.tail()}")
    if len({line["stopped"] for line in told}) != 1:
        raise BrokenPromiseError("wrong", f"the ranks stopped at different steps: {told}")
    if any(line["has_lost_worker"] for line in told):
        raise BrokenPromiseError("wrong", f"a worker was lost before the end: {told}")
    return int(told[0]["stopped"])


def check_steps(running: Running, last: int) -> None:
    """Check that the last step is there, whole, and that nothing is there that was not to be."""
    directory = Path(running.order.directory)
    infos = discovery.scan(directory)
    steps = [info.step for info in infos]
    regular = range(running.order.save_every, last + 1, running.order.save_every)
    if not steps or steps[-1] != last:
        raise BrokenPromiseError("lost", f"the ranks stopped at step {last}; there are {steps[-5:]}\n{running.tail()}")
    extra = set(steps) - set(regular) - {last}
    missing = set(regular) - set(steps)
    if extra or missing:
        raise BrokenPromiseError("wrong", f"steps {sorted(extra)} are there, {sorted(missing)} are not")
    for info in infos:
        if not info.is_restorable or open_step(info.path).verify():
            raise BrokenPromiseError("wrong", f"step {info.step} is not whole: {info.problem}")
        if set(hc.load(info.path)["w"].tolist()) != {float(info.step)}:
            raise BrokenPromiseError("wrong", f"step {info.step} holds other values")
    left = [name for name in os.listdir(directory) if not name.startswith("step-")]
    if left:
        raise BrokenPromiseError("wrong", f"left behind: {left}")


def check_goes_on(directory: Path, last: int, n_ranks: int) -> None:
    """Check that the next job goes on from the last step."""

    def body(comm: Any) -> int:
        state = {"w": np.zeros(4096), "mine": hc.PerRank(np.zeros(8))}
        with hc.Checkpointer(directory, comm=comm, max_to_keep=None) as ckpt:
            step = ckpt.restore(state).step
            assert set(state["w"].tolist()) == {float(step)}
            ckpt.save(step + 1, state)
        return step

    if set(run_ranks(n_ranks, body)) != {last}:
        raise BrokenPromiseError("lost", f"the next job did not go on from step {last}")


CAMPAIGN = Campaign(
    "preemption",
    "Jobs asked to stop at any moment, by signals to one rank or to all, HALT or their walltime: one durable step, the "
    "same on all ranks, within one step of the one that was going on, exit code 75, no worker lost, nothing left over.",
    full=100,
    run=run,
    timeout_s=120.0,
    jobs=1,
    in_memory=True,
    reason_to_skip=lambda: "" if find_mpirun() else "no mpirun on the PATH",
)
