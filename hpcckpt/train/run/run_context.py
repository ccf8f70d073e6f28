"""The context of a training: deferred signals, ranks, the lock and the log of the run directory."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcckpt import preemption
from hpcckpt.collective.communicator import Communicator, launched_size
from hpcckpt.errors import HpcckptError, LockedError, from_os_error
from hpcckpt.rundir.lock import RunLock
from hpcckpt.train.config.cycles import Cycle
from hpcckpt.train.config_errors import TrainConfigError
from hpcckpt.train.run import resume_point
from hpcckpt.train.run.run_directory import CONFIG, ENVIRONMENT, TrainingDirectory

if TYPE_CHECKING:
    from hpcckpt.train.loop.distribution import Team
    from hpcckpt.train.run.run_cycles import TrainingRun


def default_run_dir(source: str) -> Path:
    """Return the default run directory, named after the configuration, else after the program. Pure."""
    for name in (source, sys.argv[0] if sys.argv else ""):
        stem = Path(name).stem
        if stem and not stem.startswith("-"):
            return Path("runs", stem)
    return Path("runs", "run")


@contextlib.contextmanager
def started(whole: Sequence[Cycle], comm: Any) -> Iterator[Team]:
    """Start the ranks, after seeding for a bitwise repeatable run. Collective."""
    from hpcckpt.train.loop import distribution
    from hpcckpt.train.run import seeding

    seed = next((cycle.seed for cycle in whole if cycle.seed is not None), None)
    with seeding.repeatable(seed):
        team = distribution.start(whole[0].distributed, comm)
        yield team
        team.close()  # not after an error, which the other ranks may not have


@contextlib.contextmanager
def locked(directory: TrainingDirectory, comm: Communicator, wanted: resume_point.Wanted) -> Iterator[None]:
    """Hold the lock of a run directory, which is created if a run may start there. Collective."""
    held: list[RunLock] = []

    def make() -> None:
        resume_point.check_there(directory, wanted)
        try:
            directory.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise from_os_error(error, "make run directory") from error

    comm.on_root("find run directory", make)
    is_alone = comm.size == 1
    comm.on_root("lock run directory", lambda: held.append(_take(directory.path, is_alone=is_alone)))
    try:
        yield
    finally:
        for lock in held:
            lock.release()


def _take(path: Path, *, is_alone: bool) -> RunLock:
    """Take the lock; if several processes train separately, raise with advice."""
    try:
        return RunLock.take(path)
    except LockedError as error:
        size = launched_size() or 1
        if not is_alone or size == 1:
            raise
        advice = f"{size} processes train separately here: give each its own run directory, or have them"
        raise LockedError(f"{error}; {advice} train together (distributed: 'auto')") from error


def write_down(run: TrainingRun, start: resume_point.ResumePoint, wanted: str) -> None:
    """Record what starts, where, and with what. Collective."""
    from hpcckpt.train.run.environment_info import job_facts

    facts = job_facts(run.team, wanted)

    def write() -> None:
        jobs = [*run.directory.jobs(), facts]
        run.directory.write(ENVIRONMENT, {"jobs": jobs})
        run.directory.write(CONFIG, run.document)
        changes = [str(change) for change in start.changes]
        entry = {"job": len(jobs), "resume": wanted, "ranks": run.team.size, "complete": start.n_complete}
        run.directory.log("begin" if start.is_new else "go on", **entry, changes=changes, aside=list(start.aside))

    run.team.comm.on_root("write run directory", write)
    for change in start.changes:
        run.print_line(f"changed {change}")
    for path in start.aside:
        run.print_line(f"moved aside {path}")
    if start.n_complete == len(run.cycles):
        run.print_line(f"complete cycles={start.n_complete} in {run.directory.path}: nothing is left to train")


def tell_of(run: TrainingRun, error: BaseException) -> None:
    """Write down why a run ends before its end. Root only."""
    if isinstance(error, preemption.Preempted):
        run.log("preempted", step=error.step, reason=error.reason)
    else:
        with contextlib.suppress(HpcckptError):
            name = "ConfigError" if isinstance(error, TrainConfigError) else type(error).__name__  # the documented name
            run.log("failed", error=name, text=str(error)[:2000])
