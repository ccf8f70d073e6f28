"""Two tiers against one: ``mpirun -n 2 python bench/tiers.py --directory DISK --scratch FAST``.

In each round one save into the run directory, and one that commits on scratch and is drained from there.  Three times
count: how long the call blocks, until the step is committed (on scratch it survives the process, not the node), and
until it is durable in the run directory.  Each begins when the save before is durable and the file system at rest.  See
README.md.
"""

from __future__ import annotations

import argparse
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from _calibrate import Machine
from _common import WORLD, make_state, meet, parser, settle, timed, warm_memory
from _program import measure
from _report import Table, condition, figure, file_system, place_of
from _rounds import Figures, Rounds, spread
from mpi4py import MPI

import hpcckpt as hc

ONE, TWO = "one tier", "two tiers"
WHAT = ("blocking", "committed", "durable")


class Bench:
    """What is measured, on one state in two directories."""

    def __init__(self, args: argparse.Namespace, place: Path) -> None:
        self.machine = Machine()
        self.state = make_state(args.tensors, args.mib << 20)
        self.nbytes = sum(array.nbytes for array in self.state.values())
        self._scratch = Path(args.scratch) / f"hpcckpt-bench-{place.name}"
        common: dict[str, Any] = {"comm": WORLD, "max_to_keep": 1, "threads": args.threads, "check_replicas": 0}
        self._one = hc.Checkpointer(place / "one", **common)
        self._two = hc.Checkpointer(place / "two", scratch=self._scratch, **common)
        self.fast = file_system(args.scratch)
        self._step = 0

    def variants(self) -> dict[str, Callable[[], Figures]]:
        """Return what is measured."""
        return {ONE: lambda: self._save(self._one), TWO: lambda: self._save(self._two)}

    def _save(self, ckpt: hc.Checkpointer) -> Figures:
        self._step += 1
        found: dict[str, float] = {}

        def save() -> None:
            began = time.perf_counter()
            pending = ckpt.save(self._step, self.state)
            found["blocking"] = time.perf_counter() - began
            pending.result()
            found["committed"] = time.perf_counter() - began
            pending.durable()

        warm_memory(self.nbytes * 5 // 4 // WORLD.size)
        seconds = timed(save)
        slowest = {what: WORLD.allreduce(value, op=MPI.MAX) for what, value in found.items()}
        settle(lambda: None)
        return {**slowest, "durable": seconds}

    def close(self) -> None:
        """End. Collective."""
        self._one.close()
        self._two.close()
        meet()
        if WORLD.rank == 0:
            shutil.rmtree(self._scratch, ignore_errors=True)


def tabulate(found: Rounds, bench: Bench, facts: dict[str, Any]) -> Table:
    """Lay the figures out."""
    table = Table(
        f"two tiers: {bench.nbytes >> 20} MiB on {WORLD.size} rank(s), scratch on {bench.fast}, {place_of(facts)}",
        ["until", "one tier, ms", "spread", "two tiers, ms", "spread", "two of one", "spread"],
        notes=[condition(found, facts)],
    )
    for what in WHAT:
        one, two = (figure(spread(found.of(name, what)), 1e-3, 1) for name in (ONE, TWO))
        table.rows.append([what, *one, *two, *figure(spread(found.ratios(TWO, ONE, what)))])
    return table


options = parser(__doc__)
options.add_argument("--scratch", default="/dev/shm", help="the first tier: a disk of the node, or memory")
measure("tiers", options.parse_args(), Bench, tabulate)
