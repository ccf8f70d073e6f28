"""Trainings that are killed at any moment of any batch, and resumed: they end as if they had not been killed.

One case is one training (:mod:`_resume_job`) with dropout, BatchNorm, shuffled data, a schedule of the learning rate,
ReduceLROnPlateau and EarlyStopping.  It is killed with SIGKILL once or twice, one of its ranks or all of them, within a
batch that is drawn, or just behind it, while a save drains or not; and started again.  What it ends with, all weights,
statistics, slots of the optimizer and the learning rate of each rank, must have the SHA-256 of the run that was never
interrupted and never saved anything; so must the losses of all epochs; and every run must begin with the newest step
that the one before had committed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hpcckpt.rundir import discovery
from tests.campaign import _resume_job as job
from tests.campaign._common import Campaign, Case, Outcome
from tests.campaign._resume_job import Order
from tests.support.mpi.launch import clean_environment, find_mpirun, is_running

KINDS = ("keras", "horovod", "mpi4py", "torch")
RANKS = {"keras": 1, "horovod": 2, "mpi4py": 2, "torch": 1}
NEEDS = {"keras": "tensorflow", "horovod": "horovod", "mpi4py": "tensorflow", "torch": "torch"}
RUN_TIMEOUT_S = 400.0
LAUNCHER_S = 30.0


class BrokenPromiseError(Exception):
    """What a case found: a verdict, and why."""

    def __init__(self, verdict: Any, text: str) -> None:
        super().__init__(text)
        self.verdict = verdict


@dataclass(frozen=True)
class Kill:
    """When a run is killed, and who.

    Attributes
    ----------
    part : float
        Behind which part of the batches that are left.
    later_s : float
        How much later still.
    rank : int
        Which rank; -1 means all of them.
    """

    part: float
    later_s: float
    rank: int


class Running:
    """A training that was started."""

    def __init__(self, order: Order) -> None:
        self.place, self.n_ranks = Path(order.place), RANKS[order.kind]
        for rank in range(self.n_ranks):
            (self.place / f"board-{rank}").unlink(missing_ok=True)
        command = [sys.executable, str(job.HERE), order.to_json()]
        if order.kind in {"horovod", "mpi4py"}:
            launcher = find_mpirun()
            assert launcher is not None
            command = [launcher, "-n", str(self.n_ranks), *command]
        more = {"CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "2", "OMP_NUM_THREADS": "1"}
        with (self.place / "log").open("ab") as out:
            self.process = subprocess.Popen(
                command, env=clean_environment(**more), stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )  # in the worker's session, which is ended as a whole
        self.deadline = time.monotonic() + RUN_TIMEOUT_S

    def batches(self, rank: int = 0) -> int:
        """Return how many batches a rank has trained in this run."""
        return job.read_board(self.place, rank)[1]

    def kill(self, kill: Kill, n_batches: int) -> bool:
        """Kill it after N batches; return True if it was still there."""
        watched = max(kill.rank, 0)
        while self.batches(watched) < n_batches:
            if self.process.poll() is not None:
                return False
            self._check_time()
            time.sleep(0.0005)
        time.sleep(kill.later_s)
        found = [job.read_board(self.place, rank)[0] for rank in range(self.n_ranks)]
        for pid in found if kill.rank < 0 else [found[kill.rank]]:
            _kill(pid)
        return self.wait() != 0

    def wait(self) -> int:
        """Wait for the end; return the exit code."""
        last_seen = time.monotonic()
        while self.process.poll() is None:
            self._check_time()
            pids = [job.read_board(self.place, rank)[0] for rank in range(self.n_ranks)]
            if not all(pids) or any(map(is_running, pids)):
                last_seen = time.monotonic()
            elif time.monotonic() - last_seen > LAUNCHER_S:
                self.process.kill()  # all ranks have ended, and Open MPI's launcher hangs
            time.sleep(0.005)
        for rank in range(self.n_ranks):  # the launcher has seen to that, or there is none
            pid = job.read_board(self.place, rank)[0]
            _kill(pid)
            while is_running(pid):  # what it is about to publish is there before anybody looks
                self._check_time()
                time.sleep(0.005)
        return int(self.process.returncode)

    def _check_time(self) -> None:
        if time.monotonic() > self.deadline:
            self.end()
            raise BrokenPromiseError("hung", f"no end after {RUN_TIMEOUT_S:g} s\n{self.tail()}")

    def end(self) -> None:
        """Kill what is left."""
        for rank in range(self.n_ranks):
            _kill(job.read_board(self.place, rank)[0])
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def tail(self) -> str:
        """Return the end of what it printed."""
        return (self.place / "log").read_text(errors="replace", encoding="utf-8")[-3000:]


def _kill(pid: int) -> None:
    try:
        if pid > 0:
            os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


# -- one case --------------------------------------------------------------------------------------


def prepare(scratch: Path) -> dict[tuple[str, str], Any]:
    """Return room for what uninterrupted runs end with; they are run when the first case needs them."""
    return {("", "place"): scratch}


def run(case: Case) -> Outcome:
    """Kill a training, resume it, and look at what it ends with."""
    kind = KINDS[case.number % len(KINDS)]
    rng = case.rng
    n_ranks = RANKS[kind]
    order = Order(kind, str(case.scratch), rng.choice([1, 2, 3, 5, 7, 15]), rng.choice(["pipeline", "arrays"]))
    order = replace(order, data="arrays") if kind == "torch" else order
    kills = [
        Kill(rng.random(), rng.choice([0.0, rng.uniform(0, 0.03)]), rng.randrange(-1, n_ranks))
        for _ in range(rng.choice([1, 1, 2]))
    ]
    if find_spec(NEEDS[kind]) is None:
        return Outcome("skipped", kind)
    try:
        expected = _uninterrupted(case.prepared, order)
        figures = _interrupted(order, kills, expected)
    except BrokenPromiseError as broken:
        return Outcome(broken.verdict, kind, f"{broken}\n{order}\n{kills}")
    return Outcome("good", f"{kind}, {n_ranks} {'rank' if n_ranks == 1 else 'ranks'}", figures=figures)


def _uninterrupted(known: dict[tuple[str, str], Any], order: Order) -> list[dict[str, Any]]:
    """Return the reports of the ranks of a run that is not killed, and that saves nothing."""
    key = (order.kind, order.data)
    if key not in known:
        place = known["", "place"] / "-".join(key)
        place.mkdir()
        known[key] = _finished(Running(replace(order, place=str(place), every=0)))
    found: list[dict[str, Any]] = known[key]
    return found


def _finished(running: Running) -> list[dict[str, Any]]:
    """Wait for a run that ends well; return what its ranks tell, and how many batches they trained."""
    code = running.wait()
    if code != 0:
        raise BrokenPromiseError("wrong", f"a run ended with {code}\n{running.tail()}")
    told = []
    for rank in range(running.n_ranks):
        about = json.loads((running.place / f"rank-{rank}.json").read_text(encoding="utf-8"))
        told.append({**about, "batches": running.batches(rank)})
    return told


def _interrupted(order: Order, kills: list[Kill], expected: list[dict[str, Any]]) -> dict[str, float]:
    """Kill, resume, compare; return figures."""
    total, directory = expected[0]["batches"], Path(order.place, "run")
    n_killed, n_redone = 0, 0
    for kill in kills:
        begins = _newest(directory) or 0
        at = 1 + int(kill.part * (total - begins - 1))
        if at > total - begins - 1:
            break  # all is done, and saved
        running = Running(order)
        try:
            n_killed += running.kill(kill, at)
            n_redone += begins + running.batches() - (_newest(directory) or 0)
        finally:
            running.end()
        if list(Path(order.place).glob("rank-*.json")):
            break  # it was at its end
    newest = _newest(directory)
    for path in Path(order.place).glob("rank-*.json"):
        path.unlink()
    running = Running(order)
    try:
        told = _finished(running)
    finally:
        running.end()
    _compare(told, expected, newest, running)
    return {"kills": float(n_killed), "batches trained again": float(n_redone), "resumed at": float(newest or 0)}


def _newest(directory: Path) -> int | None:
    found = discovery.newest_restorable(directory) if directory.is_dir() else None
    return None if found is None else found.step


def _compare(told: list[dict[str, Any]], expected: list[dict[str, Any]], newest: int | None, running: Running) -> None:
    """Refuse what is not as in the run that was not killed."""
    for rank, (own, straight) in enumerate(zip(told, expected, strict=True)):
        where = f"rank {rank}, resumed from {own['from']}"
        if own["from"] != newest:
            raise BrokenPromiseError("lost", f"{where}: step {newest} was committed\n{running.tail()}")
        if own["sha256"] != straight["sha256"]:
            names = [name for name, digest in straight["tensors"].items() if own["tensors"].get(name) != digest]
            what = f"{len(names)} of {len(straight['tensors'])} tensors differ: {', '.join(names[:5])}"
            losses = f"{straight['losses']}\n{own['losses']}"
            raise BrokenPromiseError("wrong", f"{where}: {what}\n{losses}\n{running.tail()}")
        if own["batches"] and own["level"] != "exact":  # it is known from the first batch on
            raise BrokenPromiseError("wrong", f"{where}: level={own['level']}: {own['reasons']}")
        differing = [epoch for epoch, loss in own["losses"].items() if straight["losses"].get(epoch) != loss]
        if differing:
            losses = f"{straight['losses']}\n{own['losses']}"
            raise BrokenPromiseError("wrong", f"{where}: losses of epochs {', '.join(differing)} differ\n{losses}")


def reason_to_skip() -> str:
    """Say why it cannot be run here."""
    return "" if find_spec("tensorflow") or find_spec("torch") else "neither TensorFlow nor PyTorch is installed"


CAMPAIGN = Campaign(
    "resume",
    "a training that is killed and resumed ends with the weights of the uninterrupted one, to the bit",
    200,
    run,
    prepare,
    timeout_s=1800.0,
    reason_to_skip=reason_to_skip,
)
