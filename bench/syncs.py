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
CALL = re.compile(r"^(?:\[pid +\d+\] |\d+ +)?(?:<\.\.\. )?(\w+)(?:\(| resumed)(.*)")
FD_PATH = re.compile(r"^\d+<([^>]*)>")
QUOTED = re.compile(r'"([^"]*)"')


@dataclass
class Saved:
    """What one save did."""

    synced: list[str] = field(default_factory=list)
    renamed: list[tuple[str, str]] = field(default_factory=list)
    others: Counter[str] = field(default_factory=Counter)

    def counts(self) -> dict[str, int]:
        """Return how often files and directories were synced."""
        kinds = Counter("directories" if os.path.isdir(self._now(path)) else "files" for path in self.synced)
        return {"files": kinds["files"], "directories": kinds["directories"], "renames": len(self.renamed)}

    def _now(self, path: str) -> str:
        """Return where a path has gone by the renames."""
        for old, new in self.renamed:
            if path == old or path.startswith(f"{old}/"):
                path = new + path[len(old) :]
        return path


def found_durability(counts: dict[str, int]) -> str:
    """Return the words of the column *synced*."""
    if not counts["files"]:
        return "nothing"
    return "files, directories, commit" if counts["directories"] else "files"


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
            current.renamed.append((names[-2], names[-1]))
        elif current is not None and call in {"fsync", "fdatasync"}:
            current.synced.append((FD_PATH.match(rest) or [rest, rest])[1])
        elif current is not None:
            current.others[call] += 1
    return found


def work(place: Path) -> None:
    """Save with every library between two marks; runs under mpirun and strace."""
    from _common import WORLD, make_state, meet
    from _ours import Ours
    from _peers import FAMILIES, make_peers

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
    between_marks("hpcckpt", ours.save)
    ours.close()
    for asynchronous in (False, True):
        for peer in make_peers(state, tuple(FAMILIES), n_ranks=WORLD.size, asynchronous=asynchronous):
            path = place / re.sub(r"\W", "-", peer.name)
            takes_part = peer.is_parallel or WORLD.rank == 0
            between_marks(peer.name, (lambda p=peer, q=path: p.begin(q)()) if takes_part else (lambda: None))
    if WORLD.rank == 0:
        print("all saved")


def expected() -> dict[str, str]:
    """Return what the tables say."""
    from _common import make_state
    from _ours import DURABLE
    from _peers import FAMILIES, make_peers

    peers = [
        peer
        for asynchronous in (False, True)
        for peer in make_peers(make_state(1, 4096), tuple(FAMILIES), n_ranks=1, asynchronous=asynchronous)
    ]
    return {"hpcckpt": DURABLE} | {peer.name: peer.durability for peer in peers}


def main() -> None:
    """Trace, then say."""
    from _report import Table, publish

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
    table = Table(
        "calls of one save, 2 ranks", ["saved by", "fsync of files", "of directories", "renames", "others", "synced"]
    )
    wrong = []
    wanted = expected()
    for name, saved in read_trace(trace, place).items():
        counts = saved.counts()
        durability = found_durability(counts)
        others = ", ".join(f"{call} {count}" for call, count in sorted(saved.others.items()))
        table.rows.append([name, *map(str, counts.values()), others, durability])
        if wanted.get(name, durability) != durability:
            wrong.append(f"{name}: found {durability!r}, the tables say {wanted[name]!r}")
    publish(table, args, {"program": "syncs"})
    shutil.rmtree(place)
    if wrong:
        raise SystemExit("; ".join(wrong))


main()
