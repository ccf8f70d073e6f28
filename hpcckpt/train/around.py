"""What stands around a training: signals that wait, ranks that start, the lock of the run directory, its story."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcckpt import preemption
from hpcckpt.collective.communicator import Communicator, launched_size
from hpcckpt.errors import HpcckptError, LockedError, from_os_error
from hpcckpt.lock import RunLock
from hpcckpt.train import resuming
from hpcckpt.train.cycles import Cycle
from hpcckpt.train.run_directory import CONFIG, ENVIRONMENT, RunDirectory

if TYPE_CHECKING:
    from hpcckpt.train.distributing import Team
    from hpcckpt.train.running import Run


def default_run_dir(source: str) -> Path:
    """Return where a run goes that was given no directory: named after its configuration, or else the program. Pure."""
    for name in (source, sys.argv[0] if sys.argv else ""):
        stem = Path(name).stem
        if stem and not stem.startswith("-"):
            return Path("runs", stem)
    return Path("runs", "run")


@contextlib.contextmanager
def started(whole: Sequence[Cycle], comm: Any) -> Iterator[Team]:
    """Start the ranks; before them, whatever has to be set for a run that can be repeated to the bit. Collective."""
    from hpcckpt.train import distributing, seeding

    seed = next((cycle.seed for cycle in whole if cycle.seed is not None), None)
    with seeding.repeatable(seed):
        team = distributing.start(whole[0].distributed, comm)
        yield team
        team.close()  # not after an error, which the other ranks may not have


@contextlib.contextmanager
def locked(directory: RunDirectory, comm: Communicator, wanted: resuming.Wanted) -> Iterator[None]:
    """Hold the lock of a run directory, which is made if a run may begin there. Collective."""
    held: list[RunLock] = []

    def take() -> None:
        resuming.check_there(directory, wanted)
        try:
            directory.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise from_os_error(error, "make run directory") from error
        held.append(_take(directory.path, is_alone=comm.size == 1))

    comm.on_root("lock run directory", take)
    try:
        yield
    finally:
        for lock in held:
            lock.release()


def _take(path: Path, *, is_alone: bool) -> RunLock:
    """Take the lock; to one of several processes that train each by itself, say what they need."""
    try:
        return RunLock.take(path)
    except LockedError as error:
        size = launched_size() or 1
        if not is_alone or size == 1:
            raise
        advice = f"each of {size} processes trains by itself here: give each a run directory of its own, or have them"
        raise LockedError(f"{error}; {advice} train together (distributed: 'auto')") from error


def write_down(run: Run, begins: resuming.Beginning, wanted: str) -> None:
    """Write down what begins, where, and with what. Collective."""
    from hpcckpt.train.surroundings import job_facts

    facts = job_facts(run.team, wanted)

    def write() -> None:
        before = run.directory.read(ENVIRONMENT) or {}
        jobs = [*before.get("jobs", ()), facts]
        run.directory.write(ENVIRONMENT, {"jobs": jobs})
        run.directory.write(CONFIG, run.document)
        changes = [str(change) for change in begins.changes]
        told = {"job": len(jobs), "resume": wanted, "ranks": run.team.size, "complete": begins.n_complete}
        run.directory.log("begin" if begins.is_new else "go on", **told, changes=changes, aside=list(begins.aside))

    run.team.comm.on_root("write run directory", write)
    for change in begins.changes:
        run.say(f"changed {change}")
    for path in begins.aside:
        run.say(f"moved aside {path}")
    if begins.n_complete == len(run.cycles):
        run.say(f"complete cycles={begins.n_complete} in {run.directory.path}: nothing is left to train")


def tell_of(run: Run, error: BaseException) -> None:
    """Write down why a run ends before its end. Root only."""
    if isinstance(error, preemption.Preempted):
        run.log("preempted", step=error.step, reason=error.reason)
    else:
        with contextlib.suppress(HpcckptError):
            run.log("failed", error=type(error).__name__, text=str(error)[:2000])
