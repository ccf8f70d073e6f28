"""What does not depend on bytes: planning a save, finding the newest of many steps: ``python bench/planning.py``.

Planning: what the first save computes for the tensors of a state (`plan_for`), on 2 and on 64 ranks, and what each
later one checks (`fits`).  Finding: ``latest_step`` among a thousand checkpoints.
"""

from __future__ import annotations

import argparse
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from _common import WORLD, parser, scratch
from _report import Table, figure, machine_facts, place_of, publish
from _rounds import spread
from mpi4py import MPI

import hpcckpt as hc
from hpcckpt import native
from hpcckpt.collective.planner import fits, plan_for
from hpcckpt.core.plan import Declaration
from hpcckpt.core.tensors import Extent, TensorSpec
from hpcckpt.format import layout
from hpcckpt.format.manifest import encode
from hpcckpt.rundir import discovery
from hpcckpt.state.tree import flatten


def seconds_of(fn: Callable[[], Any], repeat: int, clock: Callable[[], float] = time.thread_time) -> list[float]:
    """Return how long each call took, by default in CPU time; a first one is not counted."""
    fn()
    found = []
    for _ in range(repeat):
        began = clock()
        fn()
        found.append(clock() - began)
    return found


def declarations(n_tensors: int) -> list[Declaration]:
    """Return replicated tensors of unlike sizes."""
    specs = [TensorSpec(f"layer{n:05d}/kernel", "float32", (64 + n % 512, 64)) for n in range(n_tensors)]
    return [Declaration(spec, Extent.whole(spec.shape)) for spec in specs]


def planning(n_tensors: int, repeat: int) -> dict[str, list[float]]:
    """Time the planning of a state of `n_tensors` tensors."""
    declared, state = declarations(n_tensors), {f"t{n:05d}": np.zeros(4, np.float32) for n in range(n_tensors)}
    found = {
        f"first save, {n_ranks} ranks": seconds_of(lambda n=n_ranks: plan_for(0, declared, [()] * n), repeat)
        for n_ranks in (2, 64)
    }
    found["later saves: compare with the plan"] = seconds_of(lambda: fits(declared, list(declared)), repeat)
    found["each save: names, shapes, dtypes of the state"] = seconds_of(lambda: flatten(state), repeat)
    return found


def make_steps(place: Path, n_steps: int) -> None:
    """Save one small step, and put copies of it beside it."""
    with hc.Checkpointer(place, comm=MPI.COMM_SELF, max_to_keep=None) as ckpt:
        ckpt.save(0, {"weights": np.arange(16.0)}).result()
    first = place / layout.step_dirname(0)
    manifest = discovery.read_manifest(first)
    for step in range(1, n_steps):
        path = place / layout.step_dirname(step)
        shutil.copytree(first, path)
        (path / layout.MANIFEST).write_bytes(encode(replace(manifest, step=step), native.crc32c))


def main() -> None:
    """Run."""
    options = parser(__doc__, repeat=15)
    options.add_argument("--steps", type=int, default=1000, help="checkpoints to search among")
    args: argparse.Namespace = options.parse_args()
    if WORLD.size > 1:
        raise SystemExit("one process is enough for this")
    table = Table("planning and finding", ["what", "ms", "spread"])
    found: dict[str, list[float]] = {}
    wall = time.perf_counter
    for n_tensors in (1000, 10_000):
        for what, seconds in planning(n_tensors, args.repeat).items():
            found[f"{what}, per 1,000 tensors of {n_tensors:,}"] = [s * 1000 / n_tensors for s in seconds]
    with scratch(args.directory) as place:
        make_steps(place / "run", args.steps)
        where = place / "run"
        if discovery.latest_step(where) != args.steps - 1:
            raise SystemExit("the steps that were made are not found")
        found[f"latest_step among {args.steps:,} checkpoints"] = seconds_of(
            lambda: discovery.latest_step(where), args.repeat, wall
        )
        with hc.Checkpointer(where, comm=MPI.COMM_SELF) as ckpt:
            found["the same, of a Checkpointer"] = seconds_of(ckpt.latest_step, args.repeat, wall)
            found["all_steps, of a Checkpointer"] = seconds_of(ckpt.all_steps, args.repeat, wall)
    facts = machine_facts(args.directory)
    table.rows = [[what, *figure(spread(seconds), 1e-3, 3)] for what, seconds in found.items()]
    clocks = "planning in CPU time, finding by the clock"
    table.notes = [f"{facts['cores']} cores, {args.repeat} calls each; {clocks}, {place_of(facts)}"]
    publish(table, args, {"program": "planning", "facts": facts, "found": found})


main()
