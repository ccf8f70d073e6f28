"""What jobs do while their operations are recorded; run as a program: ``scenarios.py NAME DISK OUTPUT``.

``DISK`` is the directory that is watched.  ``OUTPUT`` gets the log, and what was there when the recording began.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import pickle
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import hpcckpt as hc
from hpcckpt.backends.rankfile import frozen
from hpcckpt.errors import HpcckptError
from hpcckpt.testing import faults
from hpcckpt.testing.ranks import run_ranks
from tests.campaign.powerloss.reference import Kept, state_of
from tests.campaign.powerloss.trace import look_at

NO_SPACE = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
IO_ERROR = OSError(errno.EIO, os.strerror(errno.EIO))


class Job:
    """A job whose promises are marked in the log: what it has begun, and what it was told is safe.

    Parameters
    ----------
    disk, output : Path
        See the module.
    """

    def __init__(self, disk: Path, output: Path) -> None:
        self.disk = disk
        self.run = disk / "run"
        self._output = output
        self._earlier: list[str] | None = []
        self._versions: dict[int, int] = {}
        self.kept: dict[str, Kept] = {}
        """Values of the state that are held, not copied."""

    def mark(self, what: str, **facts: Any) -> None:
        """Put a mark into the log, or remember it until there is one."""
        text = json.dumps({"what": what, **facts})
        if self._earlier is None:
            ctypes.CDLL(None).powerloss_mark(text.encode())
        else:
            self._earlier.append(text)

    def record(self) -> None:
        """Record from here on; all that was done before counts as durable."""
        with (self._output / "before").open("wb") as file:
            pickle.dump((look_at(self.disk), self._earlier), file)
        recorder = ctypes.CDLL(None)
        if recorder.powerloss_start(os.fsencode(self.disk), os.fsencode(self._output / "log")) != 0:
            raise AssertionError("the recorder does not start")
        self._earlier = None

    def save(self, ckpt: hc.Checkpointer, step: int, *, is_big: bool = False, **options: Any) -> Callable[[], None]:
        """Begin to save a step; return what waits for its outcome. Collective."""
        comm: Any = ckpt.comm
        if comm.is_root:
            self._versions[step] = self._versions.get(step, 0) + 1
        version = comm.bcast(self._versions[step] if comm.is_root else None)
        if comm.is_root:
            self.mark("begun", step=step, version=version, ranks=comm.size, big=is_big)
        state = {**state_of(comm, step, version, is_big=is_big), **self.kept}
        pending = ckpt.save(step, state, **options)

        def wait() -> None:
            pending.result()
            if comm.is_root:
                self.mark("returned", step=step, version=version)

        return wait

    def saved(self, ckpt: hc.Checkpointer, *steps: int, **options: Any) -> None:
        """Save steps, one after the other. Collective."""
        for step in steps:
            self.save(ckpt, step, **options)()

    def failed(self, ckpt: hc.Checkpointer, step: int, fault: faults.Fault, **options: Any) -> None:
        """Save a step, which fails."""
        with faults.armed(fault):
            try:
                self.saved(ckpt, step, **options)
            except HpcckptError:
                return
        raise AssertionError(f"step {step} was saved in spite of {fault}")

    def restored(self, ckpt: hc.Checkpointer, step: int | None = None, *, like: int) -> None:
        """Restore a step. Collective."""
        found = ckpt.restore(state_of(ckpt.comm, like, 0, is_big=False), step)
        if ckpt.comm.is_root:
            self.mark("restored", step=found.step)

    def killed(self, step: int, phase: str, **options: Any) -> None:
        """Let a child process begin a save and be killed at a phase; only before the recording."""
        child = os.fork()
        if child == 0:
            faults.arm(faults.Fault(phase))
            with contextlib.suppress(BaseException):
                self.saved(hc.Checkpointer(self.run, **options), step)
            os._exit(1)
        ended = os.waitpid(child, 0)[1]
        assert os.WIFSIGNALED(ended)
        assert os.WTERMSIG(ended) == signal.SIGKILL
        self.mark("begun", step=step, version=1, ranks=1, big=False)
        self._versions[step] = 1

    def limit(self, count: int | None) -> int | None:
        """Tell how many steps retention leaves at least."""
        self.mark("limit", count=count)
        return count


# -- scenarios -----------------------------------------------------------------------------------


def first(job: Job) -> None:
    """Save the first step of all, of more than one block, in directories that are not there yet."""
    job.run = job.disk / "deep" / "run"
    job.record()
    with hc.Checkpointer(job.run, max_to_keep=job.limit(None)) as ckpt:
        job.saved(ckpt, 1, is_big=True)


def second(job: Job) -> None:
    """Save on after one step."""
    with hc.Checkpointer(job.run, max_to_keep=job.limit(None)) as ckpt:
        job.saved(ckpt, 1)
        job.record()
        job.saved(ckpt, 2, 3)


def retention(job: Job) -> None:
    """Keep only the newest step."""
    job.record()
    with hc.Checkpointer(job.run, max_to_keep=job.limit(1)) as ckpt:
        job.saved(ckpt, 1, 2, 3, 4)


def overwrite(job: Job) -> None:
    """Replace a good step, twice, by an exchange of names."""
    with hc.Checkpointer(job.run, max_to_keep=job.limit(None)) as ckpt:
        job.saved(ckpt, 1, 2)
        job.record()
        job.saved(ckpt, 2, overwrite=True)
        job.saved(ckpt, 2, overwrite=True)
        job.saved(ckpt, 3)


def aside(job: Job) -> None:
    """Go back to an older step; the newer ones are moved aside."""
    with hc.Checkpointer(job.run, max_to_keep=job.limit(None)) as ckpt:
        job.saved(ckpt, 1, 2, 3, 4)
    job.record()
    with hc.Checkpointer(job.run, max_to_keep=job.limit(None), on_newer="aside") as ckpt:
        job.restored(ckpt, 2, like=2)
        job.mark("aside", above=2)
        job.saved(ckpt, 3, 4)


def damaged(job: Job) -> None:
    """Replace a damaged step."""
    with hc.Checkpointer(job.run, max_to_keep=job.limit(None)) as ckpt:
        job.saved(ckpt, 1, 2)
    os.truncate(job.run / "step-0000000002" / "data" / "rank-00000.safetensors", 5000)
    job.mark("damaged", step=2)
    job.record()
    with hc.Checkpointer(job.run, max_to_keep=job.limit(None)) as ckpt:
        job.restored(ckpt, like=1)
        job.saved(ckpt, 2, 3)


def failures(job: Job) -> None:
    """Save after saves that failed: a full disk while data and manifest are written."""
    with hc.Checkpointer(job.run, max_to_keep=job.limit(2)) as ckpt:
        job.saved(ckpt, 1)
        job.record()
        job.failed(ckpt, 2, faults.Fault("2-written", "raise", error=NO_SPACE))
        job.failed(ckpt, 2, faults.Fault("4-manifest", "raise", error=NO_SPACE))
        job.saved(ckpt, 2, 3)


def unsynced(job: Job) -> None:
    """Save after a save whose last sync failed, so that its names were given back."""
    with hc.Checkpointer(job.run, max_to_keep=job.limit(2)) as ckpt:
        job.saved(ckpt, 1)
        job.record()
        job.failed(ckpt, 2, faults.Fault("5-published", "raise", error=IO_ERROR))
        job.saved(ckpt, 3)


def unsynced_exchange(job: Job) -> None:
    """Save after a replacement whose last sync failed, so that the old step got its name back."""
    with hc.Checkpointer(job.run, max_to_keep=job.limit(2)) as ckpt:
        job.saved(ckpt, 1, 2)
        job.record()
        job.failed(ckpt, 2, faults.Fault("5-published", "raise", error=IO_ERROR), overwrite=True)
        job.saved(ckpt, 3)


def ranks(job: Job) -> None:
    """Save on three ranks, with shards and values of each rank."""
    job.limit(2)
    job.record()

    def body(comm: Any) -> None:
        with hc.Checkpointer(job.run, comm=comm, max_to_keep=2) as ckpt:
            job.saved(ckpt, 1, 2, 3, 4)

    run_ranks(3, body)


def restoring(job: Job) -> None:
    """Restore and save on, twice, as jobs do that run one after the other."""
    with hc.Checkpointer(job.run, max_to_keep=job.limit(2)) as ckpt:
        job.saved(ckpt, 1, 2)
    job.record()
    for step in (3, 4):
        with hc.Checkpointer(job.run, max_to_keep=2) as ckpt:
            job.restored(ckpt, like=1)
            job.saved(ckpt, step)


def recovery(job: Job) -> None:
    """Go on after jobs that were killed in several places: what they left is swept."""
    with hc.Checkpointer(job.run, max_to_keep=job.limit(1)) as ckpt:
        job.saved(ckpt, 1)
    job.killed(2, "2-synced", max_to_keep=1)
    job.killed(3, "8-retired", max_to_keep=1)
    job.record()
    with hc.Checkpointer(job.run, max_to_keep=1) as ckpt:
        job.restored(ckpt, like=1)
        job.saved(ckpt, 4)


def pinned(job: Job) -> None:
    """Pin a step, so that retention leaves it."""
    with hc.Checkpointer(job.run, max_to_keep=job.limit(1)) as ckpt:
        job.saved(ckpt, 1)
        job.record()
        ckpt.pin(1)
        job.mark("pinned", step=1)
        job.saved(ckpt, 2, 3)
        job.mark("unpinned", step=1)
        ckpt.unpin(1)
        job.saved(ckpt, 4)


def without_exchange(job: Job) -> None:
    """Replace a good step where the file system cannot exchange names."""
    with hc.Checkpointer(job.run, max_to_keep=job.limit(None)) as ckpt:
        job.saved(ckpt, 1, 2)
        job.record()
        job.mark("two renames")
        job.saved(ckpt, 2, overwrite=True)
        job.saved(ckpt, 3)


def incremental(job: Job) -> None:
    """Save steps of which a part does not change and is linked, on two ranks; replace one; keep two."""
    frozen.MIN_BYTES = 1000
    job.limit(2)
    job.kept["frozen"] = Kept(state_of(None, 0, 0, is_big=False)["frozen"])
    job.record()

    def body(comm: Any) -> None:
        with hc.Checkpointer(job.run, comm=comm, max_to_keep=2, incremental=True) as ckpt:
            job.saved(ckpt, 1, 2, 3, 4, 5, 6)
            job.saved(ckpt, 6, overwrite=True)
            job.saved(ckpt, 7)

    run_ranks(2, body)


def shrinking(job: Job) -> None:
    """Save on three ranks, then on two, into the files of retired steps."""
    job.limit(1)

    def body(*steps: int) -> Callable[[Any], None]:
        def save(comm: Any) -> None:
            with hc.Checkpointer(job.run, comm=comm, max_to_keep=1) as ckpt:
                if steps[0] > 1:
                    job.restored(ckpt, like=1)
                job.saved(ckpt, *steps)

        return save

    run_ranks(3, body(1, 2))
    job.record()
    run_ranks(3, body(3))
    run_ranks(2, body(4, 5))


def in_flight(job: Job) -> None:
    """Save without waiting, two at a time: outcomes are asked for later."""
    job.record()
    with hc.Checkpointer(job.run, max_to_keep=job.limit(2), max_in_flight=2) as ckpt:
        waits = [job.save(ckpt, step) for step in (1, 2, 3, 4, 5)]
        for wait in waits:
            wait()


SCENARIOS: dict[str, Callable[[Job], None]] = {
    scenario.__name__.replace("_", "-"): scenario
    for scenario in (
        first,
        second,
        retention,
        overwrite,
        aside,
        damaged,
        failures,
        unsynced,
        unsynced_exchange,
        ranks,
        restoring,
        recovery,
        pinned,
        without_exchange,
        incremental,
        shrinking,
        in_flight,
    )
}


def main() -> None:
    name, disk, output = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    SCENARIOS[name](Job(disk, output))
    ctypes.CDLL(None).powerloss_stop()
    with (output / "after").open("wb") as file:
        pickle.dump(look_at(disk), file)


if __name__ == "__main__":
    main()
