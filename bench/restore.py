"""Restores against C, and what verification costs: ``mpirun -n 2 python bench/restore.py --directory DIR``.

In each round, once each, in an order of chance: our restore of the whole state on every rank, with every checksum
verified and without; the same bytes on every rank by pread in C, without a CRC32C, with one in the same pass, and with
as many threads; our save, and the checksums of what it writes, taken alone.  The files are warm.  See README.md.
"""

from __future__ import annotations

import argparse
import itertools
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from _calibrate import Machine
from _common import WORLD, make_state, own_part, parser, settle, timed, warm_memory
from _ours import Ours
from _program import measure
from _report import Table, condition, figure, place_of
from _rounds import Figures, Rounds, spread

from hpcckpt import native
from hpcckpt.collective.communicator import usable_cores

VERIFIED, UNVERIFIED = "restore", "restore, unverified"
C_ALONE, C_CHECKED, C_THREADS = "C: pread", "C: pread + CRC", "C: pread, threads"
OF_C = (C_ALONE, C_CHECKED, C_THREADS)
SAVE, CHECKSUMS = "save", "checksums of a save, alone"


class Bench:
    """What is measured, on one state in one directory."""

    def __init__(self, args: argparse.Namespace, place: Path) -> None:
        self.machine, self.file = Machine(), place / "c"
        self.threads = args.threads or usable_cores()
        self.state = make_state(args.tensors, args.mib << 20)
        self.nbytes = sum(array.nbytes for array in self.state.values())
        self.pieces = [array.reshape(-1).view(np.uint8) for array in self.state.values()]
        self.part = own_part(self.state)
        self.ours = Ours(place / "run", self.state, WORLD, threads=args.threads, async_save=False)
        self.ours.save()
        settle(lambda: self.machine.write_new_file(self.file, self.pieces))

    def variants(self) -> dict[str, Callable[[], Figures]]:
        """Return what is measured."""
        measured: dict[str, Callable[[], Any]] = {
            VERIFIED: self.ours.restore,
            UNVERIFIED: self.ours.restore_unverified,
            C_ALONE: lambda: self.machine.read_file(self.file, self.pieces),
            C_CHECKED: lambda: self.machine.read_and_check_file(self.file, self.pieces),
            C_THREADS: self.read_in_threads,
            SAVE: self.ours.save,
            CHECKSUMS: self.take_checksums,
        }
        return {name: lambda fn=fn: self._timed(fn) for name, fn in measured.items()}

    def _timed(self, fn: Callable[[], Any]) -> Figures:
        warm_memory(sum(piece.nbytes for piece in self.part))
        seconds = timed(fn)
        settle(lambda: None)
        return {"s": seconds}

    def read_in_threads(self) -> None:
        """Read with as many threads as a restore, each its share of the tensors."""
        share, offset, shares = self.nbytes // self.threads, 0, []
        for piece in self.pieces:
            shares.append((piece, offset, min(offset // share, self.threads - 1)))
            offset += piece.nbytes
        readers = []
        for number in range(self.threads):
            own = [(piece, at) for piece, at, whose in shares if whose == number]
            args = (self.file, [piece for piece, _ in own], own[0][1])
            readers.append(threading.Thread(target=self.machine.read_file, args=args))
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()

    def take_checksums(self) -> None:
        """Take the checksums of what this rank writes."""
        for piece in self.part:
            native.crc32c_blocks(piece, threads=self.threads)

    def close(self) -> None:
        """End. Collective."""
        self.ours.close()


def tabulate(found: Rounds, bench: Bench, facts: dict[str, Any]) -> Table:
    """Lay the figures out."""
    table = Table(
        f"restores and verification: {bench.nbytes >> 20} MiB on {WORLD.size} rank(s), each restores all, "
        f"{place_of(facts)}",
        ["what", "ms", "spread", *(text for c in OF_C for text in (f"times as fast as {c}", "spread"))],
        notes=[condition(found, facts)],
    )
    for name in found.figures:
        is_read = name.startswith(("restore", "C"))
        of_c = [figure(spread(found.ratios(c, name, "s")) if is_read else None) for c in OF_C]
        table.rows.append([name, *figure(spread(found.of(name, "s")), 1e-3, 1), *itertools.chain(*of_c)])
    load = figure(spread(found.ratios(VERIFIED, UNVERIFIED, "s")))
    save = figure(spread(found.ratios(CHECKSUMS, SAVE, "s")))
    table.notes.append(
        f"a verified restore takes {load[0]} ({load[1]}) times an unverified one; the checksums of a save, taken "
        f"alone, {save[0]} ({save[1]}) of a save, in whose pass over memory they hide"
    )
    return table


measure("restore", parser(__doc__).parse_args(), Bench, tabulate)
