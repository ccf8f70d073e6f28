"""What root has to do for many ranks: ``python bench/scale.py --directory /dev/shm --plot scale.svg``.

One process is root of up to 10,000 ranks that do not exist: their reports, and their empty files, are made up
beforehand, and what root sends them is counted and dropped.  Root itself does all it ever does: plan, take the reports
in, check them, write the manifest and publish, retire the step before, answer.  The growth is what counts, and that
root never does more than something for each file.
"""

from __future__ import annotations

import argparse
import pickle
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from _common import WORLD, parser, scratch
from _report import Table, machine_facts, place_of, publish

import hpcckpt as hc
from hpcckpt.backends.rankfile.backend import file_path
from hpcckpt.collective.background import _Message
from hpcckpt.collective.communicator import Communicator
from hpcckpt.collective.outcomes import Outcome
from hpcckpt.core.plan import FileRecord, WriteReport
from hpcckpt.rundir.reports import RankReport

T = TypeVar("T")
RANKS = (1, 10, 100, 1000, 3000, 10_000)
FILE_BYTES = 4096


class Count:
    """Messages and bytes to and from root, and collectives."""

    def __init__(self) -> None:
        self.sent = self.received = self.sent_nbytes = self.received_nbytes = self.collectives = 0


class CountingCommunicator(Communicator):
    """Root of ranks that say what root says, and report what was put into their `inbox`."""

    def __init__(self, size: int, count: Count, inbox: deque[tuple[int, bytes]]) -> None:
        super().__init__()
        self.rank, self.size, self.count, self.inbox = 0, size, count, inbox

    def _reduce(self, value: T, merge: Callable[[T, T], T]) -> T:
        message = pickle.dumps(value)
        self.count.collectives += 1
        for _ in range(self.size - 1):
            self.count.received_nbytes += len(message)
            value = merge(value, pickle.loads(message))
        return value

    def _spread(self, value: T | None) -> T:
        self.count.collectives += 1
        self.count.sent_nbytes += len(pickle.dumps(value))
        return value  # type: ignore[return-value]

    def _post(self, dest: int, message: tuple[str, Any]) -> None:
        del dest
        self.count.sent += 1
        self.count.sent_nbytes += len(pickle.dumps(message))

    def _take_in(self) -> None:
        if self.inbox:
            source, message = self.inbox.popleft()
            self.count.received += 1
            self.count.received_nbytes += len(message)
            self._raw.append((source, pickle.loads(message)))

    def abort(self, code: int) -> None:
        raise SystemExit(code)

    def duplicate(self) -> CountingCommunicator:
        return CountingCommunicator(self.size, self.count, self.inbox)

    def free(self) -> None:
        pass


class Root:
    """A checkpointer whose other ranks are made up."""

    def __init__(self, place: Path, n_ranks: int, state: dict[str, np.ndarray]) -> None:
        self.count, self.inbox, self.state, self.number = Count(), deque(), state, 0
        comm = CountingCommunicator(n_ranks, self.count, self.inbox)
        self.ckpt = hc.Checkpointer(place, comm=comm, max_to_keep=1, check_replicas=0)

    def save(self) -> tuple[float, Count]:
        """Save a step; return root's CPU seconds, without its writing, and what was counted."""
        self.number += 1
        before = vars(self.count).copy()
        began = time.process_time()
        pending = self.ckpt.save(self.number, self.state)
        begun_s = time.process_time() - began
        in_flight = self.ckpt._session.queue.in_flight[-1]
        in_flight.task.local.join()  # root's own bytes are no part of what grows
        self._others_write(in_flight)
        began = time.process_time()
        pending.result()
        seconds = begun_s + time.process_time() - began
        found = Count()
        found.__dict__.update({name: value - before[name] for name, value in vars(self.count).items()})
        return seconds, found

    def _others_write(self, in_flight: Any) -> None:
        staged = in_flight.staged.path
        for rank in range(1, self.ckpt.comm.size):
            path = staged / file_path(rank)
            if not path.exists():
                path.write_bytes(b"\0" * FILE_BYTES)
            record = FileRecord(file_path(rank), FILE_BYTES, 0)
            written = WriteReport((record,), in_flight.contribution.plan.shared_nbytes_of[rank])
            report = RankReport(self.number, written, None, ())
            message = _Message(in_flight.task.number, Outcome(report, None))
            self.inbox.append((rank, pickle.dumps(("saves", message))))


def measure(place: Path, n_ranks: int, state: dict[str, np.ndarray], repeat: int) -> dict[str, Any]:
    """Return what the first save and a later one took root."""
    root = Root(place, n_ranks, state)
    first_s, first = root.save()
    later = sorted((root.save() for _ in range(repeat)), key=lambda found: found[0])
    later_s, counted = later[len(later) // 2]
    root.ckpt.close()
    return {"ranks": n_ranks, "first_s": first_s, "later_s": later_s, "first": vars(first), "later": vars(counted)}


def draw(found: list[dict[str, Any]], path: Path) -> None:
    """Draw seconds, messages and bytes against ranks."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams.update({"svg.hashsalt": "hpcckpt", "svg.fonttype": "none"})
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4))
    ranks = [row["ranks"] for row in found]
    left.loglog(ranks, [row["first_s"] for row in found], "o-", label="first save: plans")
    left.loglog(ranks, [row["later_s"] for row in found], "o-", label="later saves")
    left.loglog(ranks, [found[-1]["later_s"] * n / ranks[-1] for n in ranks], ":", color="grey", label="as the files")
    left.set(xlabel="ranks = files", ylabel="CPU seconds of root")
    for name, label in (("received", "messages to root"), ("sent", "messages from root")):
        right.loglog(ranks, [max(row["later"][name], 0.5) for row in found], "o-", label=label)
    for name, label in (("received_nbytes", "KiB to root"), ("sent_nbytes", "KiB from root")):
        right.loglog(ranks, [max(row["later"][name] / 1024, 0.05) for row in found], "s--", label=label)
    right.set(xlabel="ranks = files", title="a later save")
    for axes in (left, right):
        axes.grid(visible=True, alpha=0.3)
        axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, bbox_inches="tight", metadata={"Date": None})


def main() -> None:
    """Run."""
    options = parser(__doc__, mib=16, repeat=5)
    options.add_argument("--ranks", type=int, nargs="*", default=list(RANKS), help="how many ranks to make up")
    options.add_argument("--plot", metavar="FILE", help="draw it")
    args: argparse.Namespace = options.parse_args()
    if WORLD.size > 1:
        raise SystemExit("one process is enough for this")
    state = {
        f"layer{n:03d}/kernel": np.zeros((args.mib << 18) // args.tensors, np.float32) for n in range(args.tensors)
    }
    heads = [
        "ranks",
        "first save, CPU ms",
        "later, CPU ms",
        "µs per file",
        "collectives",
        "to root",
        "KiB",
        "from root",
        "KiB",
    ]
    table = Table("root's part of a save, other ranks made up", heads)
    found = []
    with scratch(args.directory) as place:
        for n_ranks in args.ranks:
            row = measure(place / f"run-{n_ranks}", n_ranks, state, args.repeat)
            found.append(row)
            later = row["later"]
            cells = [row["first_s"] * 1e3, row["later_s"] * 1e3, row["later_s"] * 1e6 / n_ranks]
            counts = [later["collectives"], later["received"], later["received_nbytes"] >> 10]
            counts += [later["sent"], later["sent_nbytes"] >> 10]
            table.rows.append([f"{n_ranks:,}", *(f"{cell:.1f}" for cell in cells), *(f"{n:,}" for n in counts)])
    facts = machine_facts(args.directory)
    table.notes = [
        f"{facts['cores']} cores, {place_of(facts)}, median of {args.repeat} later saves, {args.tensors} tensors"
    ]
    publish(table, args, {"program": "scale", "facts": facts, "found": found})
    if args.plot:
        draw(found, Path(args.plot))


main()
