"""HDF5 by its drivers, by h5py alone, and rankfile: ``mpirun -n 2 python bench/hdf5.py --directory DIR``.

In each round, once each, in an order of chance: a durable save, then a restore of the whole state on every rank, by
the backend ``hdf5`` with the drivers ``direct``, ``per-rank`` and ``mpio``, by ``rankfile``, and by h5py as its
documentation has it: all ranks open one file with ``driver="mpio"``, create the datasets together, and each writes its
slice of each of them, collectively; then the file is closed and synced. What bounds a restore is measured too: the
same bytes by pread in C, and one without the checksums, which h5py does not have. The files are warm. See README.md.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from _calibrate import Machine
from _common import WORLD, make_state, own_part, parser, scratch, settle, timed, warm_memory
from _ours import Ours
from _report import Table, condition, figure, machine_facts, place_of, publish
from _rounds import Figures, Rounds, interleave, spread

DIRECT, PER_RANK, MPIO, RANKFILE, H5PY = "hdf5, direct", "hdf5, per-rank", "hdf5, mpio", "rankfile", "h5py, mpio"
UNVERIFIED, C_ALONE = "hdf5, direct, unverified", "C: pread"


class H5py:
    """One file, by h5py's parallel driver, and what its documentation says of it."""

    def __init__(self, path: Path, state: dict[str, Any]) -> None:
        self.path, self.state = path, state

    def save(self) -> None:
        """Write each rank's slice of each tensor together, close, and sync."""
        with h5py.File(self.path, "w", driver="mpio", comm=WORLD) as file:
            for name, array in self.state.items():
                dataset = file.create_dataset(name, array.shape, array.dtype)
                begin, end = (len(array) * (WORLD.rank + more) // WORLD.size for more in (0, 1))
                with dataset.collective:
                    dataset[begin:end] = array[begin:end]
        fd = os.open(self.path, os.O_RDWR)
        try:
            os.fdatasync(fd)
        finally:
            os.close(fd)

    def restore(self) -> None:
        """Read all tensors on every rank, together."""
        with h5py.File(self.path, "r", driver="mpio", comm=WORLD) as file:
            for name, array in self.state.items():
                dataset = file[name]
                with dataset.collective:
                    dataset.read_direct(array)

    def close(self) -> None:
        """End."""


class Bench:
    """What is measured, on one state in one directory."""

    def __init__(self, args: argparse.Namespace, place: Path) -> None:
        self.machine = Machine()
        self.state = make_state(args.tensors, args.mib << 20)
        self.nbytes = sum(array.nbytes for array in self.state.values())
        self.part = own_part(self.state)

        def ours(name: str, **options: Any) -> Ours:
            return Ours(place / name, self.state, WORLD, threads=args.threads, async_save=False, **options)

        self.writers: dict[str, Ours | H5py] = {
            RANKFILE: ours("rankfile"),
            DIRECT: ours("direct", backend="hdf5"),
            PER_RANK: ours("per-rank", backend="hdf5", backend_options={"driver": "per-rank"}),
            MPIO: ours("mpio", backend="hdf5", backend_options={"driver": "mpio"}),
            H5PY: H5py(place / "h5py.h5", self.state),
        }
        self.file = place / "c"
        pieces = [array.reshape(-1).view(np.uint8) for array in self.state.values()]
        settle(lambda: self.machine.write_new_file(self.file, pieces))
        self.readers: dict[str, Callable[[], None]] = {
            UNVERIFIED: self.writers[DIRECT].restore_unverified,
            C_ALONE: lambda: self.machine.read_file(self.file, pieces),
        }

    def variants(self) -> dict[str, Callable[[], Figures]]:
        """Return what is measured."""
        both = {name: lambda writer=writer: self._round(writer) for name, writer in self.writers.items()}
        return both | {name: lambda reader=reader: self._read(reader) for name, reader in self.readers.items()}

    def _round(self, writer: Ours | H5py) -> Figures:
        warm_memory(sum(piece.nbytes for piece in self.part) * 5 // 4)
        saved = timed(writer.save)
        settle(lambda: None)
        restored = timed(writer.restore)
        settle(lambda: None)
        return {"save": saved, "restore": restored}

    def _read(self, reader: Callable[[], None]) -> Figures:
        self.writers[DIRECT].save()  # the same before it as before the others
        settle(lambda: None)
        restored = timed(reader)
        settle(lambda: None)
        return {"restore": restored}

    def close(self) -> None:
        """End. Collective."""
        for writer in self.writers.values():
            writer.close()


def tabulate(found: Rounds, bench: Bench, facts: dict[str, Any]) -> Table:
    """Lay the figures out."""
    columns = ["", "GB/s", "spread", f"times as fast as {RANKFILE}", "spread", f"as {H5PY}", "spread"]
    table = Table(
        f"HDF5: {bench.nbytes >> 20} MiB on {WORLD.size} rank(s), {place_of(facts)}",
        columns,
        notes=[condition(found, facts)],
    )
    for what in ("save", "restore"):
        for name in bench.writers if what == "save" else found.figures:
            rates = spread([bench.nbytes / seconds for seconds in found.of(name, what)])
            over = [spread(found.ratios(other, name, what)) for other in (RANKFILE, H5PY)]
            table.rows.append([f"{what}, {name}", *figure(rates, 1e9), *figure(over[0]), *figure(over[1])])
    version = f"HDF5 {h5py.version.hdf5_version}, h5py {h5py.version.version}"
    table.notes.append(f"{version}; a restore is of all tensors on every rank; hdf5 and rankfile verify all bytes")
    return table


def main() -> None:
    """Run."""
    args = parser(__doc__).parse_args()
    if not h5py.get_config().mpi:
        print("h5py here was built without MPI: nothing to compare with", file=sys.stderr)
        return
    with scratch(args.directory) as place:
        bench = Bench(args, place)
        found = interleave(bench.variants(), bench.machine.copy_rate, repeat=args.repeat, drift=args.drift)
        bench.close()
    if WORLD.rank == 0:
        facts = {"ranks": WORLD.size, "nbytes": bench.nbytes, **machine_facts(args.directory)}
        publish(tabulate(found, bench, facts), args, {"program": "hdf5", "facts": facts, **vars(found)})


main()
