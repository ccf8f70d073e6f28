"""Durable saves against C: ``mpirun -n 2 python bench/save.py --directory DIR``.

In each round, once each, in an order of chance: our save (checksums, manifest, every fsync) into files of steps that
were retired, with a lease on each and without, and into new ones; the same bytes from the same processes by pwrite and
fdatasync in C, into files that are there already and into new ones.  What is written into new files is also measured
with the removal of an older file, or retired step, of that size, which we do in the background.  See README.md.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

from _calibrate import Machine
from _common import WORLD, make_state, own_part, parser, settle, timed, warm_memory
from _ours import Ours
from _program import measure
from _report import Table, condition, figure, place_of
from _rounds import Figures, Rounds, spread

from hpcckpt.core import failpoints

OURS, UNASKED, NEW = "hpcckpt", "hpcckpt, no leases", "hpcckpt, new files"
C_RECYCLED, C_NEW, C_EARLY = "C, recycled files", "C, new files", "C, new files, early"


class Bench:
    """What is measured, on one state in one directory."""

    def __init__(self, args: argparse.Namespace, place: Path) -> None:
        self.place, self.machine = place, Machine()
        self.state = make_state(args.tensors, args.mib << 20)
        self.nbytes = sum(array.nbytes for array in self.state.values())
        self.part = own_part(self.state)
        self.recycled = Ours(place / "recycled", self.state, WORLD, threads=args.threads, async_save=False)
        self.unasked = Ours(
            place / "unasked", self.state, WORLD, threads=args.threads, recycle="always", async_save=False
        )
        self.new = Ours(place / "new", self.state, WORLD, threads=args.threads, recycle=False, async_save=False)
        self.kept = place / f"kept-{WORLD.rank}"
        self.machine.write_new_file(self.kept, self.part)
        self.spans: list[dict[str, float]] = []
        self.marks: list[tuple[str, float]] = []
        failpoints.install_hook(lambda phase, _: self.marks.append((phase, time.perf_counter())))

    def variants(self) -> dict[str, Callable[[], Figures]]:
        """Return what is measured."""
        return {
            OURS: self.save_recycled,
            UNASKED: lambda: self._timed(self.unasked.save),
            NEW: lambda: self._timed(self.new.save, self.new.finish_removal),
            C_RECYCLED: lambda: self._timed(lambda: self.machine.write_over_file(self.kept, self.part)),
            C_NEW: self.write_new,
            C_EARLY: lambda: self.write_new(is_early=True),
        }

    def _timed(self, fn: Callable[[], Any], remove: Callable[[], Any] | None = None) -> Figures:
        warm_memory(sum(piece.nbytes for piece in self.part) * 5 // 4)
        found = {"save": timed(fn)}
        if remove is not None:
            found["with removal"] = found["save"] + timed(remove)
        settle(lambda: None)
        return found

    def save_recycled(self) -> Figures:
        """Save a step, and note when each phase was reached."""
        self.marks.clear()
        found = self._timed(self.recycled.save)
        own = {phase: at - before for (_, before), (phase, at) in pairwise(self.marks)}
        every = WORLD.allgather(own)
        # Phase 2 is the slowest rank's, the others are root's.
        self.spans.append({p: max(r.get(p, 0.0) for r in every) if p[0] == "2" else own[p] for p in own})
        return found

    def write_new(self, *, is_early: bool = False) -> Figures:
        """Write the same bytes to new files."""
        path = self.place / f"fresh-{WORLD.rank}"
        return self._timed(lambda: self.machine.write_new_file(path, self.part, is_early=is_early), path.unlink)

    def close(self) -> None:
        """End. Collective."""
        self.recycled.close()
        self.unasked.close()
        self.new.close()


def tabulate(found: Rounds, bench: Bench, facts: dict[str, Any]) -> Table:
    """Lay the figures out."""
    table = Table(
        f"durable saves: {bench.nbytes >> 20} MiB on {WORLD.size} rank(s), {place_of(facts)}",
        ["written by", "GB/s", "spread", f"times as fast as {C_RECYCLED}", "spread", f"as {C_NEW}", "spread"],
        notes=[condition(found, facts)],
    )
    for name in found.figures:
        rates = spread([bench.nbytes / seconds for seconds in found.of(name, "save")])
        recycled = spread(found.ratios(C_RECYCLED, name, "save"))
        naive = spread(found.ratios(C_NEW, name, "save"))
        table.rows.append([name, *figure(rates, 1e9), *figure(recycled), *figure(naive)])
    for what in ("save", "with removal"):
        ratio = spread(found.ratios(C_EARLY, NEW, what))
        if ratio:
            shown = f"{ratio['median']:.2f} ({ratio['least']:.2f} to {ratio['most']:.2f})"
            table.notes.append(f"{NEW}, {what}: {shown} times as fast as {C_EARLY}, {what}")
    leases = spread(found.ratios(UNASKED, OURS, "save"))
    if leases:
        shown = f"{leases['median']:.2f} ({leases['least']:.2f} to {leases['most']:.2f})"
        table.notes.append(f"with leases: {shown} times as fast as without")
    names = list(dict.fromkeys(phase for spans in bench.spans for phase in spans))
    medians = {phase: statistics.median(s.get(phase, 0.0) for s in bench.spans) * 1e3 for phase in names}
    table.notes.append("ms up to phase: " + ", ".join(f"{phase} {ms:.1f}" for phase, ms in medians.items()))
    return table


measure("save", parser(__doc__).parse_args(), Bench, tabulate)
