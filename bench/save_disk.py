"""Durable saves against C: ``mpirun -n 2 python bench/save_disk.py --directory DIR``.

One repetition is, in turn: a memcpy; our save (checksums, manifest, every fsync); the same bytes from the same
processes by pwrite and fdatasync in C; a memcpy again.  All of them write new files in one directory; what was
written is removed between the measurements, outside the clock.  See README.md.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from _calibrate import Machine
from _common import WORLD, make_state, parse, settle, slowest_copy, timed
from _report import machine_facts, report

import hpcckpt as hc
from hpcckpt import phases, retention


def own_part(state: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Return the bytes that this process writes when the tensors are laid end to end and cut evenly."""
    total, pieces, position = sum(a.nbytes for a in state.values()), [], 0
    begin, end = (total * (WORLD.rank + more) // WORLD.size for more in (0, 1))
    for array in state.values():
        data = array.reshape(-1).view(np.uint8)
        part = data[max(0, begin - position) : max(0, end - position)]
        position += data.nbytes
        pieces += [part] if part.nbytes else []
    return pieces


class Bench:
    """What is measured, on one state in one directory."""

    def __init__(self, args: argparse.Namespace, place: Path) -> None:
        self.place, self.machine, self.step = place, Machine(), 0
        self.state = make_state(args.tensors, args.mib << 20)
        self.pieces = own_part(self.state)
        options: dict[str, Any] = {"check_replicas": 0, "threads": args.threads}
        self.plain = hc.Checkpointer(place / "plain", max_to_keep=None, **options)
        self.keeping = hc.Checkpointer(place / "keeping", max_to_keep=1, **options)
        self.marks: list[tuple[str, float]] = []
        phases.install_hook(lambda phase, _: self.marks.append((phase, time.perf_counter())))

    def save(self) -> float:
        """Save a step; it is removed outside the clock."""
        seconds = self._save(self.plain)
        settle(lambda: retention.retire(self.plain.directory, f"step-{self.step:010d}"))
        return seconds

    def save_with_retention(self) -> float:
        """Save a step; the one before is removed in the course of it."""
        return self._save(self.keeping)

    def _save(self, ckpt: hc.Checkpointer) -> float:
        self.step += 1
        self.marks.clear()
        seconds = timed(lambda: ckpt.save(self.step, self.state))
        settle(lambda: None)
        return seconds

    def write_in_c(self, *, is_early: bool = False) -> float:
        """Write the same bytes to new files, in a directory like that of a step."""
        data = self.place / "c" / "step" / "data"
        settle(lambda: data.mkdir(parents=True))
        seconds = timed(
            lambda: self.machine.write_new_file(data / f"rank-{WORLD.rank}", self.pieces, is_early=is_early)
        )
        settle(lambda: shutil.rmtree(data.parent))
        return seconds

    def even_out(self) -> None:
        """Touch and free as much memory as a variant takes for its files, so that all of them find it warm."""
        np.ones(sum(piece.nbytes for piece in self.pieces) * 5 // 4, np.uint8)

    def spans(self) -> dict[str, float]:
        """Return how long each stretch up to a phase took: on the slowest rank for phase 2, else on root."""
        own = {phase: at - before for (_, before), (phase, at) in pairwise(self.marks)}
        every = WORLD.allgather(own)
        return {
            phase: max(r[phase] for r in every) if phase[0] == "2" else own[phase] for phase in every[0] if phase in own
        }


def repetition(bench: Bench, number: int) -> dict[str, Any]:
    """Measure all variants once, in an order of chance that is the same on all ranks."""
    variants = {
        "save": bench.save,
        "save+retention": bench.save_with_retention,
        "c": bench.write_in_c,
        "c, early": lambda: bench.write_in_c(is_early=True),
    }
    found: dict[str, Any] = dict.fromkeys(variants)
    found |= {"load": os.getloadavg()[0], "memcpy": [slowest_copy(bench.machine.copy_rate)]}
    for name in random.Random(number).sample(sorted(variants), len(variants)):
        bench.even_out()
        found[name] = variants[name]()
        if name == "save":
            found["spans"] = bench.spans()
    found["memcpy"].append(slowest_copy(bench.machine.copy_rate))
    return found


def main() -> None:
    """Run."""
    args = parse(__doc__.splitlines()[0])
    place = Path(
        WORLD.bcast(tempfile.mkdtemp(prefix="hpcckpt-bench-", dir=args.directory) if WORLD.rank == 0 else None)
    )
    bench = Bench(args, place)
    found = [repetition(bench, number) for number in range(args.repeat + 1)][1:]  # the first one warms up
    bench.plain.close()
    bench.keeping.close()
    if WORLD.rank == 0:
        shutil.rmtree(place)
        facts = {
            "ranks": WORLD.size,
            "nbytes": sum(a.nbytes for a in bench.state.values()),
            **machine_facts(args.directory),
        }
        report(found, facts, args)


main()
