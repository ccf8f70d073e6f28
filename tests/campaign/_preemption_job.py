"""A job like a training that is to be asked to stop: steps, validations, saves in the background, a worker process.

Started on ranks of MPI as ``_preemption_job.py '{"directory": …}'``.  Each rank shows on a board what it does at the
moment, so that the sender of the signal can choose; and it writes down how it ended.
"""

from __future__ import annotations

import faulthandler
import json
import mmap
import multiprocessing
import os
import random
import signal
import struct
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__)
ACTIVITIES = ("nothing", "warm-up", "step", "boundary", "validation", "end")
_SLOT = struct.Struct("=BBxxxxxxqq")  # activity, whether a save drains, the step that was begun, the process
BOARD_BYTES = 4096
MAX_STEPS = 100_000


@dataclass(frozen=True)
class Order:
    """What a job does.

    Attributes
    ----------
    directory, diary, board : str
        The run directory; where ranks write how they ended; where they show what they do.
    is_synchronous : bool
        Whether each batch ends with a collective call of MPI, or each rank goes at its own pace.
    warm_up_s, step_s, drain_s : float
        How long things take; steps vary about it.
    save_every, validate_every : int
        Steps between saves, and between validations.
    n_validation : int
        Batches of a validation.
    stops_in_validation, stops_in_warm_up : bool
        Whether the guard is asked within a validation, and before the first step.
    saves_first : bool
        Whether a step is saved before the guard is asked about it, or behind.
    has_worker : bool
        Whether each rank has a forked worker.
    n_steps : int
        After how many steps the training is over; 0 never. (Keras only.)
    seed : int
        For everything random.
    watch : dict
        Options for the guard.
    """

    directory: str
    diary: str
    board: str
    is_synchronous: bool = True
    warm_up_s: float = 0.0
    step_s: float = 0.005
    drain_s: float = 0.0
    save_every: int = 5
    validate_every: int = 10
    n_validation: int = 3
    stops_in_validation: bool = True
    stops_in_warm_up: bool = True
    saves_first: bool = True
    has_worker: bool = False
    n_steps: int = 0
    seed: int = 0
    watch: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        """Return it for a command line."""
        return json.dumps(asdict(self))


class Shown(NamedTuple):
    """What a rank shows on the board."""

    activity: str
    is_draining: bool
    step: int
    pid: int


def make_board(path: Path) -> None:
    """Make the board."""
    path.write_bytes(bytes(BOARD_BYTES))


def read_board(path: Path, rank: int) -> Shown:
    """Return what a rank shows."""
    with path.open("rb") as file:
        activity, is_draining, step, pid = _SLOT.unpack(os.pread(file.fileno(), _SLOT.size, rank * _SLOT.size))
    return Shown(ACTIVITIES[activity], bool(is_draining), step, pid)


class Board:
    """This rank's part of the board."""

    def __init__(self, path: str, rank: int) -> None:
        with open(path, "r+b") as file:
            self._map = mmap.mmap(file.fileno(), BOARD_BYTES)
        self._at = rank * _SLOT.size
        self._shown = Shown("nothing", False, 0, os.getpid())

    def show(self, **changed: Any) -> None:
        """Show something else."""
        self._shown = self._shown._replace(**changed)
        activity, is_draining, step, pid = self._shown
        _SLOT.pack_into(self._map, self._at, ACTIVITIES.index(activity), is_draining, step, pid)


def write(diary: str, **told: Any) -> None:
    """Add a line to the diary; ranks may do so at the same time."""
    fd = os.open(diary, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
    os.write(fd, json.dumps(told).encode() + b"\n")
    os.close(fd)


def read_diary(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a diary."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def work(parent: int) -> None:
    """Be a worker of a data loader."""
    while os.getppid() == parent:
        time.sleep(0.01)


class _Job:
    """One rank of the job."""

    def __init__(self, order: Order) -> None:
        import numpy as np
        from mpi4py import MPI

        import hpcckpt as hc
        from hpcckpt.core import failpoints

        self.order, self.comm = order, MPI.COMM_WORLD
        self.rng = random.Random(f"{order.seed}/{self.comm.rank}")
        self.board = Board(order.board, self.comm.rank)
        self.state = {"w": np.zeros(4096), "mine": hc.PerRank(np.zeros(8))}
        self.gradient = np.zeros(8)
        self.ckpt = hc.Checkpointer(order.directory, comm=self.comm, max_to_keep=None)
        failpoints.install_hook(self._at_phase)
        self.guard = hc.preemption.watch(self.ckpt, **order.watch)
        self.ckpt.on_saved(lambda saved: self.board.show(is_draining=False))
        self.worker = None
        if order.has_worker:
            self.worker = multiprocessing.get_context("fork").Process(target=work, args=(os.getpid(),), daemon=True)
            self.worker.start()

    def _at_phase(self, phase: str, rank: int) -> None:
        if phase == "2-write" and self.order.drain_s:
            self.board.show(is_draining=True)
            time.sleep(self.order.drain_s)

    def run(self) -> None:
        """Train until the guard says stop."""
        order = self.order
        self.board.show(activity="warm-up")
        time.sleep(order.warm_up_s)
        if order.stops_in_warm_up and self.guard.check(0).stop:
            self.stop(0)
        for step in count(1):
            self.train(step)
            if order.saves_first:
                self.save(step)
            self.board.show(activity="boundary")
            if self.guard.check(step).stop:
                self.stop(step)
            if not order.saves_first:
                self.save(step)
            if step % order.validate_every == 0:
                self.validate(step)
            assert step < MAX_STEPS, "nobody asked this job to stop"

    def train(self, step: int) -> None:
        """Train one batch."""
        self.board.show(activity="step", step=step)
        time.sleep(self.order.step_s * self.rng.uniform(0.2, 1.8))
        if self.order.is_synchronous:
            from mpi4py import MPI

            self.comm.Allreduce(MPI.IN_PLACE, self.gradient)
        self.state["w"][:] = step
        self.state["mine"].value[:] = step + self.comm.rank / 10

    def save(self, step: int) -> None:
        """Save now and then."""
        if step % self.order.save_every == 0:
            self.ckpt.save(step, self.state)

    def validate(self, step: int) -> None:
        """Validate, each rank by itself."""
        self.board.show(activity="validation")
        for _ in range(self.rng.randint(1, self.order.n_validation)):
            time.sleep(self.order.step_s * self.rng.uniform(0.2, 1.8))
            if self.order.stops_in_validation and self.guard.check(step).stop:
                self.stop(step)

    def stop(self, step: int) -> None:
        """Save, and end."""
        self.board.show(activity="end")
        has_lost_worker = self.worker is not None and not self.worker.is_alive()
        write(self.order.diary, rank=self.comm.rank, stopped=step, has_lost_worker=has_lost_worker)
        self.guard.save_and_exit(self.state)


if __name__ == "__main__":
    faulthandler.register(signal.SIGQUIT)
    _Job(Order(**json.loads(sys.argv[1]))).run()
