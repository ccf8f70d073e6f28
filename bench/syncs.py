"""What each library makes sure of before it reports success: ``python bench/syncs.py --directory DIR``.

Saves once with each, on 2 ranks under strace, and counts the calls that put something on the disk.  The column
*synced* of the other tables (`Peer.durability`) is checked against what is found here.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

CALLS = "fsync,fdatasync,sync,syncfs,msync,sync_file_range,rename,renameat,renameat2"
MIB, TENSORS = 16, 8
NOTHING, FILES, DIRECTORIES, DURABLE = "nothing", "files", "files, directories", "files, directories, commit"
CALL = re.compile(r"^(?:\[pid +\d+\] |\d+ +)?(?:<\.\.\. )?(\w+)(?:\(| resumed)(.*)")
FD_PATH = re.compile(r"^\d+<([^>]*)>")
QUOTED = re.compile(r'"([^"]*)"')


@dataclass
class Saved:
    """What one save did, in order: ``("sync", path)``, ``("rename", old, new)``; and how often anything else."""

    events: list[tuple[str, ...]] = field(default_factory=list)
    others: Counter[str] = field(default_factory=Counter)

    def counts(self) -> dict[str, int]:
        """Return how often files and directories were synced, and how often something was renamed."""
        kinds = Counter("directories" if self._is_directory(e[1]) else "files" for e in self.events if e[0] == "sync")
        return {
            "files": kinds["files"],
            "directories": kinds["directories"],
            "renames": sum(event[0] == "rename" for event in self.events),
        }

    def is_commit_synced(self) -> bool:
        """Return True if a directory was renamed into its place, and the parent synced after that."""
        for number, event in enumerate(self.events):
            if event[0] == "rename" and self._is_directory(event[2]):
                return ("sync", os.path.dirname(event[2])) in self.events[number:]
        return False

    def durability(self) -> str:
        """Return the words of the column *synced*."""
        counts = self.counts()
        if not counts["files"]:
            return NOTHING
        if not counts["directories"]:
            return FILES
        return DURABLE if self.is_commit_synced() else DIRECTORIES

    def _is_directory(self, path: str) -> bool:
        for event in self.events:  # where has it gone since?
            if event[0] == "rename" and (path == event[1] or path.startswith(f"{event[1]}/")):
                path = event[2] + path[len(event[1]) :]
        return os.path.isdir(path)


def read_trace(path: Path, place: Path) -> dict[str, Saved]:
    """Return what happened between the marks of each library."""
    found: dict[str, Saved] = {}
    current: Saved | None = None
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        match = CALL.match(line)
        if match is None or "resumed" in line.split("(")[0]:
            continue
        call, rest = match[1], match[2]
        names = QUOTED.findall(rest)
        if call.startswith("rename") and len(names) >= 2 and names[-2].startswith(str(place / "mark")):
            name = names[-1].rsplit("=", 1)[-1]
            current = found.setdefault(name, Saved()) if names[-1].startswith(str(place / "begin")) else None
        elif current is not None and call.startswith("rename"):
            current.events.append(("rename", names[-2], names[-1]))
        elif current is not None and call in {"fsync", "fdatasync"}:
            path_of = FD_PATH.match(rest)
            current.events.append(("sync", path_of[1] if path_of else rest))
        elif current is not None:
            current.others[call] += 1
    return found


def work(place: Path) -> None:
    """Save with every library between two marks; runs under mpirun and strace."""
    from _common import WORLD, make_state, meet
    from _ours import Ours
    from _peers import FAMILIES, make_peers
    from mpi4py import MPI

    state = make_state(TENSORS, MIB << 20)

    def between_marks(name: str, save: object) -> None:
        meet()
        for word in ("begin", "end"):
            if WORLD.rank == 0:
                (place / "mark").touch()
                os.rename(place / "mark", place / f"{word}={name}")
            meet()
            if word == "begin":
                save()  # type: ignore[operator]
            meet()

    ours = Ours(place / "run", state, WORLD)
    for _ in range(3):
        ours.save()
    between_marks("hpcckpt", ours.save)  # and not closed: that removes what shall be looked at
    for asynchronous in (False, True):
        for peer in make_peers(state, tuple(FAMILIES), n_ranks=WORLD.size, asynchronous=asynchronous):
            path = place / re.sub(r"\W", "-", peer.name)
            takes_part = peer.is_parallel or WORLD.rank == 0
            between_marks(peer.name, (lambda p=peer, q=path: p.begin(q)()) if takes_part else (lambda: None))
    if WORLD.rank == 0:
        print("all saved", flush=True)
    MPI.Finalize()
    os._exit(0)  # or the checkpointer would remove what it has prepared


def expected() -> dict[str, str]:
    """Return what the tables say."""
    from _common import make_state
    from _peers import FAMILIES, make_peers

    peers = [
        peer
        for asynchronous in (False, True)
        for peer in make_peers(make_state(1, 4096), tuple(FAMILIES), n_ranks=1, asynchronous=asynchronous)
    ]
    return {"hpcckpt": DURABLE} | {peer.name: peer.durability for peer in peers}


def main() -> None:
    """Trace, then say."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--directory", default=".", help="where to write")
    options.add_argument("--json", metavar="FILE", help="write the counts there too")
    options.add_argument("--work", metavar="PLACE", help=argparse.SUPPRESS)
    args = options.parse_args()
    if args.work:
        work(Path(args.work))
        return
    if shutil.which("strace") is None:
        raise SystemExit("strace is needed: apt-get install strace")
    place = Path(tempfile.mkdtemp(prefix="hpcckpt-syncs-", dir=os.path.abspath(args.directory)))
    trace = place / "trace"
    launch = [os.environ.get("HPCCKPT_MPIRUN") or "mpirun", "-n", "2", sys.executable, __file__, "--work", str(place)]
    subprocess.run(["strace", "-f", "-y", "-e", f"trace={CALLS}", "-o", trace, *launch], check=True)
    from _report import Table, publish  # only now: it starts MPI, and a process within MPI cannot start ranks

    table = Table(
        "calls of one save, 2 ranks", ["saved by", "fsync of files", "of directories", "renames", "others", "synced"]
    )
    wrong = []
    wanted = expected()
    for name, saved in read_trace(trace, place).items():
        counts = saved.counts()
        durability = saved.durability()
        others = ", ".join(f"{call} {count}" for call, count in sorted(saved.others.items()))
        table.rows.append([name, *map(str, counts.values()), others, durability])
        if wanted.get(name, durability) != durability:
            wrong.append(f"{name}: found {durability!r}, the tables say {wanted[name]!r}")
    publish(table, args, {"program": "syncs"})
    shutil.rmtree(place)
    if wrong:
        raise SystemExit("; ".join(wrong))


main()
