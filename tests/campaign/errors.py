"""File operations that fail while a step is saved or restored: the same typed error everywhere, and nothing lost.

One case is one fault in one scene (a first save, a later one, a restore, …: :data:`_errors_job.SCENES`).  First the
calls of a clean scene are counted, then each of them fails once, in one of the ways it can; besides there are errors
that last (a full disk), slow disks, threads that end or cannot be started, and jobs of real MPI.
"""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hpcckpt.core.failpoints import PHASES
from tests.campaign import _errors_job as job
from tests.campaign._common import HERE, Campaign, Case, Outcome
from tests.campaign._errors_job import SCENES, Trial
from tests.support.mpi.launch import find_mpirun, mpirun

POSITIONS = {
    "first save": 140,
    "save": 140,
    "save of one rank, synchronous": 125,
    "save, nothing recycled": 155,
    "incremental save": 200,
    "save over a step": 170,
    "save after a kill": 230,
    "restore": 85,
    "restore on three ranks": 160,
}
"""Cases with one failing call, by scene: a few more than a clean one has calls, so that each of them fails."""

LASTING = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EMFILE, errno.EACCES)
BACKGROUND = tuple(phase for phase in PHASES if "1-begin" <= phase < "7-outcome" or phase.startswith("8-"))
MPI_TIMEOUT_S = 200.0
_FOREVER = 1 << 40


@dataclass(frozen=True)
class Plan:
    """What a case tries: its sort, its scene, and which of how many of them it is."""

    sort: str
    scene: str
    number: int
    count: int


def _plans() -> Iterator[Plan]:
    for scene, count in POSITIONS.items():
        yield from (Plan("call", scene, number, count) for number in range(count))
        yield from (Plan("lasting", scene, number, 18) for number in range(18))
        yield from (Plan("slow", scene, number, 3) for number in range(3))
        yield from (Plan("no thread", scene, number, 3) for number in range(3))
    for number, phase in enumerate(BACKGROUND):
        yield from (Plan(f"thread ends at {phase}", scene, number, 1) for scene in ("save", "save over a step"))
    for number in range(60):
        yield Plan("MPI", ["save", "first save", "save over a step", "restore"][number % 4], number, 60)


PLANS = list(_plans())
random.Random(0).shuffle(PLANS)  # any part of the campaign has something of all


class Server:
    """A process with the shim, which plays trials in its own children."""

    def __init__(self, scratch: Path) -> None:
        self.shim = scratch / "errors_shim.so"
        source = HERE / "_errors_shim.c"
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", self.shim, source, "-ldl"], check=True)
        self.process = subprocess.Popen(
            [sys.executable, str(job.HERE), str(self.shim)],
            env={**os.environ, "LD_PRELOAD": str(self.shim)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.n_calls = {name: self.count(name, scratch / "clean") for name in SCENES}

    def play(self, trial: Trial) -> dict[str, Any]:
        """Play a trial on threads as ranks."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(trial.to_json() + "\n")
        self.process.stdin.flush()
        result: dict[str, Any] = json.loads(self.process.stdout.readline())
        return result

    def count(self, scene: str, place: Path) -> int:
        """Return how many calls a scene has in which nothing fails."""
        result = self.play(Trial(scene, str(place)))
        assert not result["problems"], f"{scene}, without a fault: {result['problems']}"
        shutil.rmtree(place)
        return int(result["n_calls"])

    def play_on_mpi(self, trial: Trial, n_ranks: int) -> dict[str, Any]:
        """Play a trial on ranks of MPI."""
        done = mpirun(
            n_ranks, str(job.HERE), str(self.shim), trial.to_json(), timeout_s=MPI_TIMEOUT_S, LD_PRELOAD=str(self.shim)
        )
        results = done.lines("RESULT")
        return results[0] if results else {"problems": [f"the job ended with {done.code}\n{done.err[-6000:]}"]}


def prepare(scratch: Path) -> Server:
    """Build the shim, and start a process with it."""
    return Server(scratch)


def _trial(case: Case, plan: Plan, n_calls: int) -> Trial:
    rng = case.rng
    trial = Trial(plan.scene, str(case.scratch / "run"), variant=rng.randrange(1 << 20))
    n_ranks = SCENES[plan.scene].n_ranks
    whose = ["", f"rank-{0:05d}", f"rank-{n_ranks - 1:05d}"]
    if plan.sort == "call":
        position = plan.number * n_calls // plan.count
        return replace(trial, first=position, last=position + 1)
    if plan.sort == "lasting":
        wanted, selected = LASTING[plan.number % len(LASTING)], whose[plan.number // len(LASTING)]
        begin = rng.choice([0, rng.randrange(4 if selected else 20)])
        return replace(trial, first=begin, last=_FOREVER, wanted=wanted, selected=selected)
    if plan.sort == "slow":
        return replace(trial, first=0, last=_FOREVER, selected=whose[plan.number], delay_us=rng.choice([3000, 20000]))
    if plan.sort == "no thread":
        begin = rng.choice([0, 0, 1, 2])
        return replace(trial, first=begin, last=begin + rng.choice([1, 3, 1000]), wanted=errno.EAGAIN)
    if plan.sort == "MPI":
        ranks = [(0,), (n_ranks - 1,), tuple(range(n_ranks))][plan.number // 4 % 3]
        first = rng.randrange(n_calls if 0 in ranks else 16)
        if rng.random() < 0.5:
            return replace(trial, first=first, last=first + 1, ranks=ranks)
        return replace(trial, first=first, last=_FOREVER, ranks=ranks, wanted=rng.choice(LASTING))
    is_roots = BACKGROUND[plan.number][0] in "14568"
    return replace(trial, phase=BACKGROUND[plan.number], phase_rank=0 if is_roots else rng.randrange(n_ranks))


def run(case: Case) -> Outcome:
    """Try one fault."""
    plan = PLANS[case.number % len(PLANS)]
    server: Server = case.prepared
    trial = _trial(case, plan, server.n_calls[plan.scene])
    if plan.sort == "MPI" and not find_mpirun():
        return Outcome("skipped", plan.sort)
    result = _play(server, plan, trial)
    if result["problems"] and all(text.startswith(job.SLOW) for text in result["problems"]):
        # it may be the machine that had much else to do; what waits for something does so again
        result = _play(server, plan, replace(trial, directory=f"{trial.directory}-again"))
    what = plan.sort if plan.sort != "call" else " ".join(result.get("failed", [])) or "a call that did not come"
    figures = {f"calls of a clean {plan.scene}": float(server.n_calls[plan.scene])}
    if result.get("error"):
        figures["seconds to the error"] = float(result["seconds"])
    if result["problems"]:
        return Outcome(_verdict(result), what, _text(trial, result), figures)
    return Outcome("detected" if result["error"] else "good", what, figures=figures)


def _play(server: Server, plan: Plan, trial: Trial) -> dict[str, Any]:
    if plan.sort == "MPI":
        return server.play_on_mpi(trial, SCENES[plan.scene].n_ranks)
    return server.play(trial)


def _verdict(result: dict[str, Any]) -> Any:
    if result.get("is_hung"):
        return "hung"
    return "lost" if any(" is gone" in text for text in result["problems"]) else "wrong"


def _text(trial: Trial, result: dict[str, Any]) -> str:
    failed = [f"failed: {call}" for call in result.get("calls", [])]
    return "\n".join([str(trial), *failed, f"told: {result.get('error')}", *result["problems"]])


def _reason_to_skip() -> str:
    if sys.platform != "linux":
        return "needs Linux"
    return "" if shutil.which("cc") else "no C compiler"


CAMPAIGN = Campaign(
    "errors",
    "Whatever operation on files fails, every rank is told the same typed error within five seconds or the step is "
    "saved, nothing hangs, what was there stays, and the next save succeeds.",
    full=len(PLANS),
    run=run,
    prepare=prepare,
    timeout_s=500.0,
    jobs=2,
    in_memory=True,
    reason_to_skip=_reason_to_skip,
)
