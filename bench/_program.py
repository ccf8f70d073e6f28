"""How a benchmark of interleaved variants runs, from the scratch directory to the table."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

from _calibrate import Machine
from _common import WORLD, scratch
from _report import Table, machine_facts, publish
from _rounds import Figures, Rounds, interleave


class Bench(Protocol):
    """What is measured, on one state in one directory."""

    machine: Machine
    nbytes: int

    def variants(self) -> Mapping[str, Callable[[], Figures]]:
        """Return what takes turns."""

    def close(self) -> None:
        """End. Collective."""


B = TypeVar("B", bound=Bench)
Tabulate = Callable[[Rounds, B, dict[str, Any]], Table]


def measure(
    program: str, args: argparse.Namespace, make: Callable[[argparse.Namespace, Path], B], tabulate: Tabulate[B]
) -> None:
    """Measure in rounds, and publish the table that root makes of them. Collective.

    Parameters
    ----------
    program : str
        Its name, for the figures that are written down.
    args : argparse.Namespace
        The options that all benchmarks have.
    make : callable
        Makes the benchmark in a directory.
    tabulate : callable
        Lays the figures out.
    """
    with scratch(args.directory) as place:
        bench = make(args, place)
        found = interleave(bench.variants(), bench.machine.copy_rate, repeat=args.repeat, drift=args.drift)
        bench.close()
    if WORLD.rank == 0:
        facts = {"ranks": WORLD.size, "nbytes": bench.nbytes, **machine_facts(args.directory)}
        publish(tabulate(found, bench, facts), args, {"program": program, "facts": facts, **vars(found)})
