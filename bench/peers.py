"""Saves and loads of one replicated state, ours and our peers': ``mpirun -n 2 python bench/peers.py --directory DIR``.

A peer saves on root, as its users do, while the other ranks sleep; hpcckpt and, in its own row, torch DCP save with all
ranks.  The clock of a save runs until the job's checkpoint is there, that of a load until every rank has the values.
Then root makes it durable as a user could: fsync of each file, of its directories and of the directory above.
With ``--asynchronous`` it is the ways that return early, and also how long until they return.  With ``--apart`` each
peer has separate rounds with ours and C: on a disk, ten libraries in one round make all slow.  Run it with the peers'
environment: ``HPCCKPT_STACK=peers scripts/dev/in-venv.sh ...``.  See README.md.
"""

from __future__ import annotations

import argparse
import os
import shutil
import time
from collections.abc import Callable, Set as AbstractSet
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from _calibrate import Machine
from _common import WORLD, make_state, meet, own_part, parser, scratch, settle, timed, warm_memory
from _ours import DURABLE, Ours
from _peers import FAMILIES, Peer, Wait, make_peers
from _report import Table, condition, figure, machine_facts, place_of, publish
from _rounds import Figures, Rounds, interleave, joined, spread
from mpi4py import MPI

REFERENCE, RECYCLED = "hpcckpt", "C: pwrite, recycled files"
HEADS = {"durable": "made durable", "save": "as it is"}


def sync(path: Path) -> None:
    """Call fsync for a file or a directory."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_all(path: Path) -> None:
    """Call fsync for a file or all of a directory's files and directories, and for the directory above."""
    for directory, _, names in os.walk(path, topdown=False):
        for name in names:
            sync(Path(directory, name))
        sync(Path(directory))
    if path.is_file():
        sync(path)
    sync(path.parent)


class Bench:
    """What is measured, on one state in one directory."""

    def __init__(self, args: argparse.Namespace, place: Path) -> None:
        self.args, self.place, self.machine, self.number = args, place, Machine(), 0
        self.state = make_state(args.tensors, args.mib << 20)
        self.nbytes = sum(array.nbytes for array in self.state.values())
        self.durability: dict[str, str] = {}
        self.variants: dict[str, Callable[[], Figures]] = {}
        self.ours: list[Ours] = []
        self.peers: list[str] = []
        self._add_ours(REFERENCE, self.state, WORLD)
        if args.asynchronous:
            self._add_ours(f"{REFERENCE}, TF variables", self._variables(), WORLD)
        else:
            self._add_ours(f"{REFERENCE}, one rank", self.state, MPI.COMM_SELF)
            self._add_c()
        for peer in make_peers(self.state, tuple(args.families), n_ranks=WORLD.size, asynchronous=args.asynchronous):
            if args.peer and peer.name not in args.peer:
                continue
            self.durability[peer.name] = peer.durability
            self.peers.append(peer.name)
            self.variants[peer.name] = partial(self.measure_peer, peer)

    def _variables(self) -> dict[str, Any]:
        from _peers_tf import model_of, variables_of

        return variables_of(model_of(self.state))

    def _add_ours(self, name: str, state: Any, comm: MPI.Comm) -> None:
        is_alone = comm is MPI.COMM_SELF  # each rank has its own run then; root's is measured
        place = self.place / f"{name}-{WORLD.rank if is_alone else 'all'}"
        ours = Ours(place, state, comm, threads=self.args.threads, async_save=self.args.asynchronous)
        self.ours.append(ours)
        self.durability[name] = DURABLE
        self.variants[name] = partial(self.measure_ours, ours, is_alone=is_alone)

    def _add_c(self) -> None:
        part = own_part(self.state)
        whole = [array.reshape(-1).view(np.uint8) for array in self.state.values()]
        kept, new, read = self.place / f"kept-{WORLD.rank}", self.place / f"new-{WORLD.rank}", self.place / "whole"
        self.machine.write_new_file(kept, part)
        settle(lambda: self.machine.write_new_file(read, whole))

        def recycled() -> Figures:
            self.even_out()
            save = timed(lambda: self.machine.write_over_file(kept, part))
            settle(lambda: None)
            return {"save": save, "durable": save, "load": timed(lambda: self.machine.read_file(read, whole))}

        def naive() -> Figures:
            self.even_out()
            figures = {"save": timed(lambda: self.machine.write_new_file(new, part))}
            figures["durable"] = figures["save"] + timed(lambda: sync(self.place) if WORLD.rank == 0 else None)
            new.unlink()
            settle(lambda: None)
            return figures

        self.variants |= {RECYCLED: recycled, "C: pwrite, new files": naive}
        self.durability |= dict.fromkeys((RECYCLED, "C: pwrite, new files"), "files")

    def even_out(self) -> None:
        """Let all find as much warm memory as the file and a library's own copies take."""
        warm_memory(self.nbytes * (5 if WORLD.rank == 0 else 2) // 2)

    def measure_ours(self, ours: Ours, *, is_alone: bool) -> Figures:
        """Save and restore with hpcckpt; alone, it is root's save that counts."""
        figures = self._measure_save(ours.begin, takes_part=WORLD.rank == 0 or not is_alone)
        return figures if is_alone else figures | {"load": timed(ours.restore)}

    def measure_peer(self, peer: Peer) -> Figures:
        """Save to a new path on root or on all ranks, load it on all, and remove it."""
        self.number += 1
        path = self.place / f"peer-{self.number}"
        figures = self._measure_save(
            lambda: peer.begin(path), lambda: sync_all(path), takes_part=peer.is_parallel or WORLD.rank == 0
        )
        if not peer.is_async:
            self.even_out()
            figures["load"] = timed(lambda: peer.load(path))
        settle(lambda: shutil.rmtree(path) if path.is_dir() else path.unlink())
        return figures

    def _measure_save(
        self, begin: Callable[[], Wait], make_durable: Callable[[], None] | None = None, *, takes_part: bool
    ) -> Figures:
        blocked = 0.0

        def save() -> None:
            nonlocal blocked
            if takes_part:
                began = time.perf_counter()
                wait = begin()
                blocked = time.perf_counter() - began
                wait()

        def finish() -> None:
            if make_durable and WORLD.rank == 0:
                make_durable()

        self.even_out()
        seconds = timed(save)
        durable = seconds + timed(finish) if make_durable else seconds
        settle(lambda: None)
        return {"save": seconds, "durable": durable, "blocks": WORLD.allreduce(blocked, op=MPI.MAX)}

    def measure(self) -> Rounds:
        """Measure all variants in common rounds, or each peer in separate rounds with ours and C. Collective."""
        if not self.args.apart:
            return self._measure_group(self.variants.keys())
        others = self.variants.keys() - set(self.peers)
        beside = others & {REFERENCE, RECYCLED}
        return joined([self._measure_group(group) for group in [others, *(beside | {peer} for peer in self.peers)]])

    def _measure_group(self, names: AbstractSet[str]) -> Rounds:
        chosen = {name: measure for name, measure in self.variants.items() if name in names}
        return interleave(chosen, self.machine.copy_rate, repeat=self.args.repeat, drift=self.args.drift)

    def close(self) -> None:
        """End."""
        for ours in self.ours:
            ours.close()


def tabulate(found: Rounds, bench: Bench, facts: dict[str, Any]) -> Table:
    """Lay the figures out, fastest durable save first, or shortest block."""
    measured = ("blocks", "save") if bench.args.asynchronous else ("durable", "save", "load")
    heads = [text for what in measured for text in (f"{HEADS.get(what, what)}, ms", "times hpcckpt's")]
    table = Table(
        f"{bench.nbytes >> 20} MiB in {len(bench.state)} tensors on {WORLD.size} rank(s), {place_of(facts)}",
        ["saved by", "synced by itself", *heads],
        notes=[condition(found, facts)],
    )
    first = {name: spread(found.of(name, measured[0])) for name in bench.variants}
    for name in sorted(bench.variants, key=lambda name: (first[name] or {"median": 1e9})["median"]):
        cells = [name, bench.durability[name]]
        for what in measured:
            cells.append(figure(spread(found.of(name, what)), 1e-3, 1)[0])
            median, least_to_most = figure(spread(found.ratios(name, REFERENCE, what)))
            cells.append(f"{median} ({least_to_most})" if median else "")
        table.rows.append(cells)
    return table


def main() -> None:
    """Run."""
    options = parser(__doc__, mib=512, repeat=5)
    options.add_argument("--asynchronous", action="store_true", help="measure the ways that return early")
    options.add_argument("--apart", action="store_true", help="give each peer rounds of its own with ours and C")
    options.add_argument("--families", nargs="*", default=list(FAMILIES), choices=list(FAMILIES), help="which peers")
    options.add_argument("--peer", nargs="*", default=[], metavar="NAME", help="only these of them, as in the table")
    args = options.parse_args()
    with scratch(args.directory) as place:
        bench = Bench(args, place)
        found = bench.measure()
        bench.close()
        meet()
    if WORLD.rank == 0:
        facts = {"ranks": WORLD.size, "nbytes": bench.nbytes, **machine_facts(args.directory)}
        program = "peers_async" if args.asynchronous else "peers"
        data = {"program": program, "facts": facts, "durability": bench.durability, **vars(found)}
        publish(tabulate(found, bench, facts), args, data)


main()
