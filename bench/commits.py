"""What a change costs: ``python bench/commits.py OLD NEW --directory DIR``, two checkouts with environments.

Three jobs stay open: one of each commit, and a second one of OLD, which shows what a commit differs from itself.
They start in an order of chance, and in each round every measurement is taken once by each of them, in such an order
too.  ``--starts`` starts new jobs that often: processes of the same commit differ by up to a tenth.  See README.md.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import statistics
import subprocess
import sys
from pathlib import Path
from types import TracebackType

BOUND = 0.03
"""How far medians may differ where the same commit differs from itself by less."""
WARM_UP = 3
CHILD = Path(__file__).with_name("_commits_child.py")
NAMES = ("old", "old again", "new")


class Job:
    """The ranks of one checkout, which take measurements when asked."""

    def __init__(self, tree: Path, args: argparse.Namespace) -> None:
        in_venv = [str(tree / "scripts" / "dev" / "in-venv.sh")]
        launch = ["sh", "-c", f'exec "$HPCCKPT_MPIRUN" -n {args.ranks} "$@"', "mpirun"] if args.ranks > 1 else []
        command = [*in_venv, *launch, "python", str(CHILD), args.directory, str(args.mib)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=tree)
        self.measurements = self._answer()

    def _answer(self) -> list[str]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"a job ended with {self._process.wait()}: {self._process.args}")
        found: list[str] = json.loads(line)
        return found

    def measure(self, name: str) -> float:
        """Return the seconds of a measurement."""
        self._ask(name)
        return float(self._answer())  # type: ignore[arg-type]

    def _ask(self, name: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{name}\n")
        self._process.stdin.flush()

    def __enter__(self) -> Job:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ask("")
        self._process.wait()


Found = dict[str, dict[str, list[float]]]
"""Seconds by measurement and job."""


def rounds(jobs: dict[str, Job], start: int, repeat: int, found: Found) -> None:
    """Add the seconds of one start of the jobs; the first `WARM_UP` rounds do not count."""
    names = jobs["new"].measurements
    for number in range(-WARM_UP, repeat):
        for name in names:
            for job in random.Random(f"{start} {number} {name}").sample(sorted(jobs), len(jobs)):
                seconds = jobs[job].measure(name)
                if number >= 0:
                    found.setdefault(name, {}).setdefault(job, []).append(seconds)
        print(f"start {start + 1}: round {number + WARM_UP + 1} of {repeat + WARM_UP}", file=sys.stderr)


def lines(found: Found) -> list[str]:
    """Return a table: medians in milliseconds, and how they differ."""
    rows = ["| | old | old again | new | old again / old | new / old | holds |", "|---|---:|---:|---:|---:|---:|---|"]
    for name, by_job in found.items():
        old, again, new = (statistics.median(by_job[job]) for job in NAMES)
        pooled = statistics.median(by_job["old"] + by_job["old again"])
        holds = new / pooled - 1 <= max(BOUND, abs(again / old - 1))
        medians = " | ".join(f"{1e3 * seconds:.2f}" for seconds in (old, again, new))
        rows.append(f"| {name} | {medians} | {again / old:.3f} | {new / pooled:.3f} | {'yes' if holds else 'NO'} |")
    return rows


def main() -> None:
    """Measure, and print the table."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("old", type=Path)
    options.add_argument("new", type=Path)
    options.add_argument("--directory", default=".", help="where to write: a disk, or memory (/dev/shm)")
    options.add_argument("--ranks", type=int, default=1)
    options.add_argument("--mib", type=int, default=256, help="size of the large state")
    options.add_argument("--repeat", type=int, default=15, help="rounds of each start")
    options.add_argument("--starts", type=int, default=1, help="how often the jobs are started again")
    options.add_argument("--json", type=Path, metavar="FILE", help="write every measurement there too")
    args = options.parse_args()
    args.directory = str(Path(args.directory).resolve())
    trees = {"old": args.old, "old again": args.old, "new": args.new}
    found: Found = {}
    for start in range(args.starts):
        with contextlib.ExitStack() as stack:
            order = random.Random(start).sample(NAMES, len(NAMES))  # the one that starts last is at times slower
            jobs = {name: stack.enter_context(Job(trees[name].resolve(), args)) for name in order}
            rounds(jobs, start, args.repeat, found)
    n_rounds = args.starts * args.repeat
    print(f"{args.ranks} rank(s), {args.directory}, medians of {n_rounds} rounds, {args.starts} start(s), in ms")
    print("\n".join(lines(found)))
    if args.json is not None:
        args.json.write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
