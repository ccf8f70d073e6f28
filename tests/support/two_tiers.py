"""What tests of two tiers share: a run on nodes with own disks, a trap for its phases, and looks at what is left."""

from __future__ import annotations

import errno
import os
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import hpcckpt as hc
from hpcckpt import tiers
from hpcckpt.format import layout
from hpcckpt.rundir import discovery
from hpcckpt.rundir.retention import leftovers
from hpcckpt.tools.inspect import check_step


def state(value: float, rank: int = 0, length: int = 4_000) -> dict[str, Any]:
    return {"w": np.full(length, float(value)), "n": hc.PerRank(np.full(3, value + rank, float)), "epoch": int(value)}


def two_to_a_node(rank: int, size: int) -> int:
    return rank if size == 2 else rank // 2


def on_one_node(_rank: int, _size: int) -> int:
    return 0


@dataclass
class Nodes:
    """A run directory, and a scratch directory on each node; and what a kill would have left of them."""

    home: Path
    disks: Path
    kept: Path
    node_of: Callable[[int, int], int] = two_to_a_node
    options: dict[str, Any] = field(default_factory=dict)

    def open(self, comm: Any, **options: Any) -> hc.Checkpointer:
        scratch = self.disks / f"node-{self.node_of(comm.rank, comm.size)}"
        return hc.Checkpointer(self.home, comm=comm, **{"scratch": scratch, **self.options, **options})

    @property
    def near(self) -> Path:
        """Where steps are on root's node."""
        return self.places(1)[0]

    def places(self, size: int) -> list[Path]:
        numbers = sorted({self.node_of(rank, size) for rank in range(size)})
        return [tiers.scratch_directory(self.home, self.disks / f"node-{number}") for number in numbers]

    def last_leader(self, size: int) -> int:
        return next(rank for rank in range(size) if self.node_of(rank, size) == self.node_of(size - 1, size))

    def elsewhere(self) -> Nodes:
        """Return the same run on nodes that it never was on."""
        return Nodes(self.home, self.kept / "other-disks", self.kept, self.node_of, self.options)

    def placed(self, node_of: Callable[[int, int], int]) -> Nodes:
        """Return the same run with its ranks on other nodes of these."""
        return Nodes(self.home, self.disks, self.kept, node_of, self.options)

    def keep(self) -> None:
        """Keep what is there now, as a kill would leave it; locks aside, for this process lives on."""
        for place, name in ((self.home, "home"), (self.disks, "disks")):
            _copied(place, self.kept / name)

    def bring_back(self) -> None:
        for place, name in ((self.home, "home"), (self.disks, "disks")):
            shutil.rmtree(place)
            os.rename(self.kept / name, place)

    def is_clean(self, size: int) -> bool:
        """Return True if nothing half done is left anywhere."""
        return not any(leftovers(place) for place in [self.home, *self.places(size)])


def _copied(source: Path, target: Path) -> None:
    """Copy a tree in which other ranks may give names just now."""
    limit = time.monotonic() + 30
    while True:
        try:
            shutil.copytree(source, target, ignore=shutil.ignore_patterns(layout.LOCK + "*"))
        except (shutil.Error, OSError):
            shutil.rmtree(target, ignore_errors=True)
            if time.monotonic() > limit:
                raise
        else:
            return


class Trap:
    """Does something once, when one rank comes to a phase after it was set; holds drains back if asked to.

    To the phases of a drain all ranks come, and whichever is there counts.
    """

    def __init__(self) -> None:
        self.phase, self.rank, self.act, self.left = "", 0, lambda: None, 0
        self.refused: set[tuple[str, int]] = set()
        """Phases at which ranks find no room, each time."""
        self._guard = threading.Lock()
        self._may_drain = threading.Event()
        self._may_drain.set()

    def set(self, phase: str, act: Callable[[], Any], rank: int = 0, arrival: int = 1) -> None:
        self.rank, self.act, self.left, self.phase = rank, act, arrival, phase

    @property
    def has_sprung(self) -> bool:
        return not self.phase

    def hold_drains(self) -> None:
        self._may_drain.clear()

    def let_drains_go(self) -> None:
        self._may_drain.set()

    @property
    def is_holding(self) -> bool:
        return not self._may_drain.is_set()

    def __call__(self, phase: str, rank: int) -> None:
        if phase == "drain-begun":
            self._may_drain.wait(120)
        if (phase, rank) in self.refused:
            raise OSError(errno.EDQUOT, "Disk quota exceeded", phase)
        with self._guard:
            if phase != self.phase or (rank != self.rank and phase not in tiers.PHASES):
                return
            self.left -= 1
            if self.left:
                return
            self.phase = ""
        self.act()


# -- what a run does, and what it finds ------------------------------------------------------------


def save_steps(nodes: Nodes, ranks: Any, *steps: int, **options: Any) -> None:
    def body(comm: Any) -> None:
        with nodes.open(comm, **options) as ckpt:
            for step in steps:
                ckpt.save(step, state(step, comm.rank))

    ranks(body)


def restored(nodes: Nodes, ranks: Any, step: int | None = None) -> Any:
    """Restore as a new job would; return the step, its place and the warnings, checked to be the same on all ranks."""

    def body(comm: Any) -> Any:
        held = state(0, comm.rank)
        with nodes.open(comm) as ckpt:
            steps = ckpt.all_steps()
            found = ckpt.restore(held, step)
        assert held["w"].tolist() == [float(found.step)] * 4_000
        assert held["n"].value.tolist() == [found.step + comm.rank] * 3
        assert found.step in steps
        return found.step, found.path.parent, found.warnings

    results = ranks(body)
    assert results == [results[0]] * ranks.size
    return results[0]


def kill(nodes: Nodes, ranks: Any, trap: Trap, phase: str, rank: int = 0, arrival: int = 1) -> None:
    """Leave everything as a kill does when a rank comes to a phase of step 2; step 1 is in the run directory."""

    def body(comm: Any) -> None:
        with nodes.open(comm) as ckpt:
            ckpt.save(1, state(1, comm.rank)).durable()
            comm.barrier()
            if comm.is_root:
                trap.set(phase, nodes.keep, rank, arrival)
            comm.barrier()
            ckpt.save(2, state(2, comm.rank))

    ranks(body)
    nodes.bring_back()


def raising(error: Exception) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


def are_whole(nodes: Nodes, steps: Sequence[int]) -> bool:
    """Return True if these steps are in the run directory, no others, and each with all its bytes."""
    there = discovery.step_numbers(nodes.home)
    return there == list(steps) and all(check_step(nodes.home / layout.step_dirname(s)).is_whole for s in there)
