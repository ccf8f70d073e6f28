"""Incremental saves, 90 % of the weights frozen: ``mpirun -n 2 python bench/incremental.py --directory DIR``.

In each round one full save and one incremental save of the same TensorFlow variables, one in ten of which was assigned
to since the save before: only for variables it is known that they were not written.  See README.md.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf
from _calibrate import Machine
from _common import WORLD, make_state, parser, settle, timed, warm_memory
from _ours import Ours
from _program import measure
from _report import Table, condition, figure, place_of
from _rounds import Figures, Rounds, spread

FULL, INCREMENTAL = "full", "incremental, 90 % frozen"
ONE_IN = 10
N_BEFORE = 5
"""Saves until the frozen tensors have separate files and are linked."""


class Bench:
    """What is measured, on one state in one directory."""

    def __init__(self, args: argparse.Namespace, place: Path) -> None:
        self.machine = Machine()
        arrays = make_state(args.tensors, args.mib << 20)
        self.nbytes = sum(array.nbytes for array in arrays.values())
        self.changed_nbytes = sum(array.nbytes for array in list(arrays.values())[::ONE_IN])
        self.state = {name: tf.Variable(array) for name, array in arrays.items()}
        self.full = Ours(place / "full", self.state, WORLD, threads=args.threads, async_save=False)
        self.incremental = Ours(
            place / "incremental", self.state, WORLD, threads=args.threads, async_save=False, incremental=True
        )
        for _ in range(N_BEFORE):
            self._save(self.incremental)

    def variants(self) -> dict[str, Callable[[], Figures]]:
        """Return what is measured."""
        return {FULL: lambda: self._save(self.full), INCREMENTAL: lambda: self._save(self.incremental)}

    def _save(self, ours: Ours) -> Figures:
        for variable in list(self.state.values())[::ONE_IN]:
            variable.assign_add(tf.ones_like(variable))
        warm_memory(self.nbytes * 5 // 4 // WORLD.size)
        seconds = timed(ours.save)
        settle(lambda: None)
        saved = ours.saved
        return {"save": seconds, "nbytes": float(saved.nbytes - saved.linked_nbytes)}

    def close(self) -> None:
        """End. Collective."""
        self.full.close()
        self.incremental.close()


def tabulate(found: Rounds, bench: Bench, facts: dict[str, Any]) -> Table:
    """Lay the figures out."""
    table = Table(
        f"incremental: {bench.nbytes >> 20} MiB on {WORLD.size} rank(s), {bench.changed_nbytes >> 20} MiB change, "
        f"{place_of(facts)}",
        ["save", "ms", "spread", "of a full save", "spread", "bytes written, of those changed"],
        notes=[condition(found, facts)],
    )
    for name in found.figures:
        written = spread([nbytes / bench.changed_nbytes for nbytes in found.of(name, "nbytes")])
        seconds, ratio = spread(found.of(name, "save")), spread(found.ratios(name, FULL, "save"))
        table.rows.append([name, *figure(seconds, 1e-3, 1), *figure(ratio), figure(written)[0]])
    return table


measure("incremental", parser(__doc__).parse_args(), Bench, tabulate)
