"""Jobs that are killed again and again: what was committed is there, and the next job goes on from it.

One case is the life of one run directory: jobs of one process, of ranks as threads, or of ranks of MPI, on changing
rank counts, each killed (SIGKILL) at a random instant or at a named phase, five kills in all; now and then a job in
between comes to its end, and the last one does.  After each of them all that is visible is read and compared bit by
bit with what its step must hold (:mod:`_reference_state`), and with what the job was told (:mod:`_kills_job`).
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import hpcckpt as hc
from hpcckpt.core.failpoints import PHASES
from hpcckpt.format import layout
from hpcckpt.restoring.reader import open_step
from hpcckpt.rundir import discovery, pins
from hpcckpt.testing.ranks import run_ranks
from tests.campaign import _kills_job as job, _mutants
from tests.campaign._common import Campaign, Case, Outcome
from tests.campaign._kills_job import Order, Strike
from tests.campaign._reference_state import differences
from tests.support.mpi.launch import clean_environment, find_mpirun, is_running

KILLS = 5
MAX_JOBS = 100
JOB_TIMEOUT_S = 240.0
WEIGHTS = [3 if phase in {"4-durable", "5-published", "8-retired"} else 1 for phase in PHASES]
ROOT_ONLY = {phase for phase in PHASES if phase[0] in "14568"}
LIFE = {"one process": 60, "threads": 30, "MPI": 10}
Durations = dict[tuple[str, str], float]


class BrokenPromiseError(Exception):
    """What a case found: a verdict, and why."""

    def __init__(self, verdict: Any, text: str) -> None:
        super().__init__(text)
        self.verdict = verdict


# -- jobs ------------------------------------------------------------------------------------------


@dataclass
class Ended:
    """How a job ended."""

    is_killed: bool
    code: int
    seconds: float


def _fork(order: Order, n_ranks: int, errors: Path) -> int:
    """Start a job in a child of this process, which has all modules; its ranks are threads."""
    pid = os.fork()
    if pid:
        return pid
    code = 3
    try:
        os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
        run_ranks(n_ranks, lambda comm: job.run_job(order, comm), JOB_TIMEOUT_S)
        code = 0
    except BaseException:  # noqa: BLE001 - this process must not go on as its parent
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(code)


def _run_forked(order: Order, n_ranks: int, errors: Path, kill_after_s: float | None) -> Ended:
    began = time.monotonic()
    pid = _fork(order, n_ranks, errors)
    if kill_after_s is not None:
        time.sleep(kill_after_s)
        os.kill(pid, signal.SIGKILL)  # it is not waited for yet: the id is its own
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        seconds = time.monotonic() - began
        if done:
            code = os.waitstatus_to_exitcode(status)
            return Ended(code == -signal.SIGKILL, code, seconds)
        if seconds > JOB_TIMEOUT_S:
            os.kill(pid, signal.SIGUSR1)  # it says where it is
            time.sleep(0.5)
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise BrokenPromiseError("hung", f"a job did not end\n{errors.read_text(encoding='utf-8')[-4000:]}")
        time.sleep(0.0005)


def _run_mpi(order: Order, n_ranks: int, errors: Path, kill_after_s: float | None, victims: tuple[int, ...]) -> Ended:
    launcher = find_mpirun()
    assert launcher is not None
    began = time.monotonic()
    command = [launcher, "-n", str(n_ranks), sys.executable, str(job.HERE), order.to_json()]
    n_lines = len(job.read_diary(Path(order.diary)))
    with errors.open("ab") as log:
        process = subprocess.Popen(
            command, env=clean_environment(), stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )  # in the worker's session, which is ended as a whole
    try:
        pids: list[int] = []
        while not pids and process.poll() is None:
            _check_time(began, errors)
            time.sleep(0.002)
            pids = next((line["ready"] for line in job.read_diary(Path(order.diary))[n_lines:] if "ready" in line), [])
        ready = time.monotonic()
        if kill_after_s is not None and pids:
            time.sleep(kill_after_s)
            for pid in [pids[victim] for victim in victims] if process.poll() is None else []:
                _kill(pid)
        while process.poll() is None or any(map(is_running, pids)):
            _check_time(began, errors)
            time.sleep(0.005)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    lines = job.read_diary(Path(order.diary))[n_lines:]
    is_closed = any("closed" in line for line in lines)
    return Ended(process.returncode != 0 or not is_closed, process.returncode, time.monotonic() - ready)


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # the job was faster


def _check_time(began: float, errors: Path) -> None:
    if time.monotonic() - began > JOB_TIMEOUT_S:
        raise BrokenPromiseError("hung", f"a job of MPI did not end\n{errors.read_text(encoding='utf-8')[-4000:]}")


# -- preparation: how long jobs take ---------------------------------------------------------------


def prepare(scratch: Path) -> Durations:
    """Measure how long jobs take that are not killed, so that timers fall into them."""
    _mutants.apply_from_environment()
    found: Durations = {}
    for size in ("small", "large", "variables"):
        times = [_measure(scratch / f"{size}-{n}", size) for n in range(3)]
        found["one process", size] = found["threads", size] = statistics.median(times)
    return found


def _measure(place: Path, size: str) -> float:
    place.mkdir()
    order = _order(place, size=size, n_steps=6)
    ended = _run_forked(order, 2, place / "errors", None)
    assert ended.code == 0, (place / "errors").read_text(encoding="utf-8")
    return ended.seconds


def _order(place: Path, **more: Any) -> Order:
    job.make_board(place / "board")
    paths = {name: str(place / name) for name in ("directory", "diary", "board")}
    return Order(**{**paths, "first_version": 0, "seed": 0, **more})


# -- one life --------------------------------------------------------------------------------------


@dataclass
class Life:
    """One run directory, from its first job to its last."""

    case: Case
    kind: str
    size: str
    options: dict[str, Any]
    version: int = 0
    visible: dict[int, int] = field(default_factory=dict)
    n_killed: int = 0
    n_jobs: int = 0
    hits: Counter[str] = field(default_factory=Counter)
    history: list[str] = field(default_factory=list)

    @property
    def place(self) -> Path:
        """Where directory, diary and board are."""
        return self.case.scratch

    @property
    def directory(self) -> Path:
        """The run directory."""
        return self.place / "directory"

    def live(self) -> None:
        """Run jobs and kill them; after each one check all that is there."""
        rng = self.case.rng
        while self.n_killed < KILLS:
            assert self.n_jobs < MAX_JOBS, f"{MAX_JOBS} jobs, and only {self.n_killed} of them could be killed"
            self.run_one(is_spared=rng.random() < 0.12)
        self.run_one(is_spared=True)
        self.check_tidy()

    def run_one(self, *, is_spared: bool) -> None:
        """Run one job, kill it unless it is spared, and check what is there."""
        rng = self.case.rng
        n_steps = rng.randint(4, 10) if self.options["incremental"] else rng.randint(2, 8)
        n_ranks = 1 if self.kind == "one process" else rng.choice([1, 2, 2, 3, 3])
        order = _order(
            self.place,
            size=self.size,
            n_steps=n_steps,
            first_version=self.version,
            seed=rng.randrange(1 << 30),
            options=self.draw_options(),
            overwrites=rng.choice([0.0, 0.0, 0.3]),
            goes_back_to=self.draw_way_back(),
        )
        kill_after_s, victims = None, self.draw_victims(n_ranks)
        if not is_spared and rng.random() < 0.4:
            kill_after_s = self.draw_timer()
        elif not is_spared:
            order = replace(order, strike=self.draw_strike(n_ranks, n_steps, victims))
        self.n_jobs += 1
        self.history.append(f"{n_ranks} ranks, killed after {kill_after_s} by {order.strike}, {order}")
        n_lines = len(job.read_diary(Path(order.diary)))
        ended = self.start(order, n_ranks, kill_after_s, victims)
        self.history[-1] += f" -> {ended}"
        self.check_end(ended, is_spared, kill_after_s is not None or order.strike is not None)
        self.n_killed += ended.is_killed
        if ended.is_killed:
            self.hits[job.read_board(Path(order.board), 0) or "before any phase"] += 1
        self.check(job.read_diary(Path(order.diary))[n_lines:], order)

    def start(self, order: Order, n_ranks: int, kill_after_s: float | None, victims: tuple[int, ...]) -> Ended:
        """Run the job to its end."""
        errors = self.place / "errors"
        errors.touch()
        if self.kind == "MPI":
            return _run_mpi(order, n_ranks, errors, kill_after_s, victims)
        return _run_forked(order, n_ranks, errors, kill_after_s)

    # -- what happens in it ------------------------------------------------------------------------

    def draw_options(self) -> dict[str, Any]:
        """Return options that a restart may change."""
        rng = self.case.rng
        in_flight = 1 if self.options["incremental"] else rng.choice([1, 1, 2])
        more = {"async_save": rng.random() < 0.8, "max_in_flight": in_flight, "threads": rng.choice([1, 2])}
        return {**self.options, **more, "on_newer": "aside"}

    def draw_way_back(self) -> int | None:
        """Return an older step to go on from, seldom."""
        rng = self.case.rng
        older = sorted(self.visible)[:-1]
        return rng.choice(older) if older and rng.random() < 0.1 else None

    def draw_victims(self, n_ranks: int) -> tuple[int, ...]:
        """Return which ranks are killed: all, root, or any other one."""
        rng = self.case.rng
        return rng.choice([tuple(range(n_ranks)), (0,), (n_ranks - 1,), (rng.randrange(n_ranks),)])

    def draw_timer(self) -> float:
        """Return an instant within a job, its beginning and end included."""
        duration = self.case.prepared.get((self.kind, self.size), 0.25 if self.size == "small" else 0.6)
        return self.case.rng.uniform(0.0, 1.1 * duration)

    def draw_strike(self, n_ranks: int, n_steps: int, victims: tuple[int, ...]) -> Strike:
        """Return a phase to be killed at, or some time after."""
        rng = self.case.rng
        phase = rng.choices(PHASES, WEIGHTS)[0]
        rank = 0 if phase in ROOT_ONLY else rng.randrange(n_ranks)
        occurrence = 1 if phase in {"0-plan", "9-restore"} else rng.randint(1, 1 + n_steps // 2)
        delay_s = 0.0 if rng.random() < 0.5 else 10 ** rng.uniform(-5, -2)
        return Strike(phase, rank, occurrence, victims if self.kind == "MPI" else (rank,), delay_s)

    # -- what must hold ----------------------------------------------------------------------------

    def check_end(self, ended: Ended, is_spared: bool, is_aimed: bool) -> None:
        """Check that a job that was not killed came to a good end."""
        errors = (self.place / "errors").read_text(encoding="utf-8")
        is_to_end_well = is_spared or not ended.is_killed
        if "AssertionError" in errors or (is_to_end_well and ended.code != 0):
            raise BrokenPromiseError("wrong", f"a job ended with {ended.code}\n{errors[-6000:]}")
        assert is_aimed or not ended.is_killed

    def check(self, lines: list[dict[str, Any]], order: Order) -> None:
        """Check all that is visible, against what must be in it and what the job was told."""
        self.check_restored(lines, order)
        diary = job.read_diary(Path(order.diary))
        saves = [line["saves"] for line in diary if "saves" in line]
        self.version = max((version for _, version in saves), default=0)
        self.visible = {step: self.check_step(step, saves) for step in discovery.step_numbers(self.directory)}
        self.check_told(diary)

    def check_restored(self, lines: list[dict[str, Any]], order: Order) -> None:
        """Check that the job went on from the newest step, or from the one it was told to."""
        found = next((line for line in lines if "restored" in line), None)
        if found is None:
            return  # killed before
        step = order.goes_back_to or max(self.visible, default=None)
        wanted = None if step is None else [step, self.visible[step]]
        if found["restored"] != wanted:
            raise BrokenPromiseError("lost", f"{found['restored']} was restored instead of {wanted}")

    def check_step(self, step: int, saves: list[list[int]]) -> int:
        """Check a visible step; return its version."""
        info = discovery.inspect_step(self.directory, step)
        if info.manifest is None:
            raise BrokenPromiseError("wrong", f"step {step} is visible, and not whole: {info.problem}")
        damaged = open_step(info.path).verify()
        if damaged:
            raise BrokenPromiseError("wrong", f"step {step} is visible, and damaged: {damaged}")
        loaded = hc.load(info.path)
        of_step, version = map(int, loaded["version"])
        wrong = differences(loaded, self.size, step, version, info.manifest.n_ranks)
        if of_step != step or [step, version] not in saves or wrong:
            text = f"step {step} holds version {version} of step {of_step}, and other values of {wrong}"
            raise BrokenPromiseError("wrong", text)
        return version

    def check_told(self, diary: list[dict[str, Any]]) -> None:
        """Check that nothing is gone that a job was told is committed."""
        told: list[int] | None = None
        for line in diary:
            told = line.get("committed", told)
            if line.get("back"):
                told = line["restored"]
        if told is None:
            return
        step, version = told
        newest = max(self.visible, default=-1)
        if newest < step or (newest == step and self.visible[step] < version):
            found = f"step {newest}, version {self.visible.get(newest)}"
            raise BrokenPromiseError("lost", f"step {step}, version {version} was committed; the newest is {found}")

    def check_tidy(self) -> None:
        """Check that the last job left nothing but steps, and no more of them than were to stay."""
        hidden = [name for name in os.listdir(self.directory) if name.startswith(".")]
        left = [name for name in hidden if name != layout.PINS and not name.startswith(".aside-")]
        if left:
            raise BrokenPromiseError("wrong", f"left after the last job: {left}")
        kept = sorted(self.visible)[-self.options["max_to_keep"] :]
        extra = set(self.visible) - set(kept) - pins.pins(self.directory)
        if extra:
            raise BrokenPromiseError("wrong", f"retention left {extra} beside {kept}")


def run(case: Case) -> Outcome:
    """Live one life."""
    rng = case.rng
    kind = rng.choices(list(LIFE), list(LIFE.values()))[0] if find_mpirun() else rng.choice(["one process", "threads"])
    size = rng.choices(["small", "large", "variables"], [6, 2, 2])[0]
    incremental = size == "variables" and rng.random() < 0.8
    options = {"max_to_keep": rng.choice([1, 2, 3]), "recycle": rng.random() < 0.8, "incremental": incremental}
    life = Life(case, kind, size, options)
    try:
        life.live()
        outcome = Outcome("good")
    except BrokenPromiseError as broken:
        history = "\n".join(life.history[-3:])
        outcome = Outcome(broken.verdict, text=f"{broken}\nafter {life.n_killed} kills, options {options}\n{history}")
    told = [line for line in job.read_diary(life.place / "diary") if "committed" in line]
    figures = {"kills": float(life.n_killed), "jobs": float(life.n_jobs), "saves that returned": float(len(told))}
    figures["saves with linked files"] = float(sum(line["linked"] > 0 for line in told))
    figures |= {f"kills, last seen at {phase}": float(count) for phase, count in sorted(life.hits.items())}
    return replace(outcome, what=f"{kind}, {size}{', incremental' if incremental else ''}", figures=figures)


CAMPAIGN = Campaign(
    "kills",
    f"2,000 SIGKILLs, {KILLS} in each case: every visible step is whole and bit-exact, none that was committed is "
    "lost, the next job goes on, and the last one leaves nothing behind.",
    full=400,
    run=run,
    prepare=prepare,
    timeout_s=1200.0,
    jobs=2,
    in_memory=True,
)
