"""Verified restores against C: ``mpirun -n 2 python bench/restore.py --directory DIR``.

One repetition is, in turn: a memcpy; our restore of the whole state on every rank (every checksum verified); the
same bytes on every rank by pread in C; a memcpy again.  The files are warm.  See README.md.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from _calibrate import Machine
from _common import WORLD, make_state, parse, settle, slowest_copy, timed
from _report import machine_facts, report

import hpcckpt as hc


def main() -> None:
    """Run."""
    args = parse(__doc__.splitlines()[0])
    place = Path(
        WORLD.bcast(tempfile.mkdtemp(prefix="hpcckpt-bench-", dir=args.directory) if WORLD.rank == 0 else None)
    )
    machine, state = Machine(), make_state(args.tensors, args.mib << 20)
    pieces = [array.reshape(-1).view(np.uint8) for array in state.values()]
    with hc.Checkpointer(place / "run", threads=args.threads) as ckpt:
        ckpt.save(1, state)
        settle(lambda: machine.write_new_file(place / "c", pieces))

        def repetition(number: int) -> dict[str, Any]:
            variants = {"restore": lambda: ckpt.restore(state), "c": lambda: machine.read_file(place / "c", pieces)}
            found: dict[str, Any] = {"load": os.getloadavg()[0], "memcpy": [slowest_copy(machine.copy_rate)]}
            for name in list(variants)[:: 1 if number % 2 else -1]:
                found[name] = timed(variants[name])
            found["memcpy"].append(slowest_copy(machine.copy_rate))
            return found

        found = [repetition(number) for number in range(args.repeat + 1)][1:]
    if WORLD.rank == 0:
        shutil.rmtree(place)
        nbytes = WORLD.size * sum(array.nbytes for array in state.values())
        report(found, {"ranks": WORLD.size, "nbytes": nbytes, **machine_facts(args.directory)}, args)


main()
