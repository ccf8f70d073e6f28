"""A job like a training: restore, then change the state and save it, step by step, until it ends or is killed.

Before it continues it writes down, durably and outside of the run directory, what was reported to it: so the process
after the kill knows what must still be there.  Started on ranks of MPI as ``_kills_job.py '{"directory": …}'``.
"""

from __future__ import annotations

import json
import mmap
import os
import random
import signal
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import hpcckpt as hc
from hpcckpt.core import failpoints
from hpcckpt.errors import StepNotFoundError
from hpcckpt.testing import faults
from tests.campaign import _mutants
from tests.campaign._reference_state import State

HERE = Path(__file__)
BOARD_BYTES = 4096


@dataclass(frozen=True)
class Strike:
    """When the job kills itself: some time after a rank reaches a phase for the n-th time.

    Without a delay it is :mod:`hpcckpt.testing.faults` that kills, exactly there.
    """

    phase: str
    rank: int
    occurrence: int
    victims: tuple[int, ...]
    delay_s: float = 0.0


@dataclass(frozen=True)
class Order:
    """What a job does.

    Attributes
    ----------
    directory, diary, board : str
        The run directory; where the job writes down what it was told; where each rank shows its last phase.
    size : str
        Which state, see `State`.
    n_steps : int
        How many saves.
    first_version : int
        No save before this job had this version or a later one.
    seed : int
        For what the job does between saves.
    options : dict
        The checkpointer's.
    overwrites : float
        How probable it is that a step is saved a second time, over itself.
    goes_back_to : int, optional
        Restore this step instead of the newest.
    strike : Strike, optional
        When to die; by default never by its own hand.
    """

    directory: str
    diary: str
    board: str
    size: str
    n_steps: int
    first_version: int
    seed: int
    options: Mapping[str, Any] = field(default_factory=dict)
    overwrites: float = 0.0
    goes_back_to: int | None = None
    strike: Strike | None = None

    def to_json(self) -> str:
        """Return it for a command line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Order:
        """Return what `to_json` told."""
        order = json.loads(text)
        if order["strike"] is not None:
            order["strike"] = Strike(**{**order["strike"], "victims": tuple(order["strike"]["victims"])})
        return cls(**order)


class Diary:
    """What root was told, durable before the job goes on."""

    def __init__(self, path: str, rank: int) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666) if rank == 0 else None

    def write(self, **told: Any) -> None:
        """Add a line."""
        if self._fd is not None:
            os.write(self._fd, json.dumps(told).encode() + b"\n")
            os.fsync(self._fd)


def read_diary(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a diary that are whole: one may just be written."""
    whole = path.read_text(encoding="utf-8").rpartition("\n")[0] if path.exists() else ""
    return [json.loads(line) for line in whole.splitlines()]


def make_board(path: Path) -> None:
    """Make the file in which each rank shows, in its byte, the phase that it reached last."""
    path.write_bytes(bytes(BOARD_BYTES))


def read_board(path: Path, rank: int) -> str:
    """Return the phase that a rank reached last; "" before the first one."""
    number = path.read_bytes()[rank]
    return failpoints.PHASES[number - 1] if number else ""


class _Watch:
    """The hook at phases: shows them, and strikes when it is time."""

    def __init__(self, order: Order, pids: list[int]) -> None:
        self.order, self.pids, self.arrivals = order, pids, 0
        self.guard = threading.Lock()
        with open(order.board, "r+b") as file:
            self.board = mmap.mmap(file.fileno(), BOARD_BYTES)
        strike = order.strike
        exact = strike is not None and not strike.delay_s
        if exact:
            fault = faults.Fault(strike.phase, "kill", strike.rank, strike.occurrence, strike.victims)
            faults.arm(fault, pids=pids)
        self.trap = failpoints._hook if exact else None
        failpoints.install_hook(self)

    def __call__(self, phase: str, rank: int) -> None:
        self.board[rank] = failpoints.PHASES.index(phase) + 1
        strike = self.order.strike
        if self.trap is not None:
            self.trap(phase, rank)
        elif strike is not None and (phase, rank) == (strike.phase, strike.rank) and self._is_time(strike):
            threading.Thread(target=self._strike, args=(strike,), daemon=True).start()

    def _is_time(self, strike: Strike) -> bool:
        with self.guard:
            self.arrivals += 1
            return self.arrivals == strike.occurrence

    def _strike(self, strike: Strike) -> None:
        time.sleep(strike.delay_s)
        own = os.getpid()
        for pid in sorted({self.pids[victim] for victim in strike.victims}, key=lambda pid: pid == own):
            os.kill(pid, signal.SIGKILL)  # this process last


class _Job:
    """One rank of the job."""

    def __init__(self, order: Order, ckpt: hc.Checkpointer, diary: Diary) -> None:
        self.order, self.ckpt, self.diary = order, ckpt, diary
        self.rng = random.Random(order.seed)  # the same on all ranks: what is collective is done by all
        self.state = State(order.size, ckpt.comm.rank, ckpt.comm.size)
        self.version = order.first_version
        self.pending: list[tuple[int, int, hc.PendingSave]] = []

    def restore(self) -> int:
        """Restore, check every bit, and return the step; 0 if there is none."""
        back = self.order.goes_back_to
        try:
            restored = self.ckpt.restore(self.state.tree, back)
        except StepNotFoundError:
            self.diary.write(restored=None)
            return 0
        step, version = self.state.version
        wrong = self.state.differences(step, version, n_ranks_saved=restored.n_ranks)
        assert step == restored.step, f"step {restored.step} was restored with the values of {step}"
        assert not wrong, f"step {step} was restored with other values of {wrong}"
        self.diary.write(restored=[step, version], back=back is not None)
        return step

    def save(self, step: int, *, overwrite: bool) -> None:
        """Train, and begin to save."""
        self.version += 1
        self.state.become(step, self.version)
        self.diary.write(saves=[step, self.version])
        pending = self.ckpt.save(step, self.state.tree, metrics={"loss": 1.0 / step}, overwrite=overwrite)
        self.pending.append((step, self.version, pending))

    def train(self) -> None:
        """Go on for a while after a save: some batches, each with a poll; then perhaps ask for results."""
        for _ in range(self.rng.choice([0, 0, 1, 3])):
            self.ckpt.poll()
            time.sleep(self.rng.choice([0.0, 0.0005, 0.003]))
        if self.rng.random() < 0.7:
            self.ask(self.rng.choice([0, 0, 1]))

    def ask(self, n_left: int) -> None:
        """Ask for results, and write down those that came."""
        while len(self.pending) > n_left:
            step, version, pending = self.pending.pop(0)
            saved = pending.result()
            assert saved.step == step
            assert not saved.warnings, saved.warnings
            self.diary.write(committed=[step, version], linked=saved.linked_nbytes)

    def run(self) -> None:
        """Restore, and save `n_steps` steps."""
        step = self.restore()
        for _ in range(self.order.n_steps):
            is_again = step > 0 and self.rng.random() < self.order.overwrites
            step += 0 if is_again else 1
            self.save(step, overwrite=is_again)
            self.train()
        self.ask(0)


def run_job(order: Order, comm: Any) -> None:
    """Run one rank of a job, to its clean end."""
    diary = Diary(order.diary, comm.rank)
    with hc.Checkpointer(order.directory, comm=comm, **order.options) as ckpt:
        everybody = faults.process_ids(ckpt.comm)
        if comm.rank == 0 or everybody[0] != os.getpid():  # ranks that are threads share root's
            _Watch(order, everybody)
        ckpt.comm.barrier()
        diary.write(ready=everybody)
        _Job(order, ckpt, diary).run()
    diary.write(closed=True)


def main() -> None:
    """Run as a rank of MPI."""
    from mpi4py import MPI

    order = Order.from_json(sys.argv[1])
    _mutants.apply_from_environment()
    try:
        run_job(order, MPI.COMM_WORLD)
    except BaseException:  # noqa: BLE001 - the other ranks are waiting
        sys.stderr.write(f"[rank {MPI.COMM_WORLD.rank}] {traceback.format_exc()}")
        sys.stderr.flush()
        MPI.COMM_WORLD.Abort(3)


if __name__ == "__main__":
    main()
