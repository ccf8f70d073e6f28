"""Which steps are kept, and how the others are retired: decided purely, done under the run's lock.

Retiring a step, in this order, so that a kill at any point leaves nothing that looks whole:

    a. rename it to ``.retired-<nonce>``, rename it back if it was pinned meanwhile, else fsync the run directory: out
       of sight.  A pin is set before its user checks that the step is there, so one of the two notices the other
    b. remove its manifest and fsync: no longer a checkpoint
    c. remove the rest on a thread (:mod:`hpcckpt.rundir.workspace`), or keep its files for the next save, which writes
       over them (on most file systems several times faster than into new files)
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection
from pathlib import Path
from typing import NamedTuple

from hpcckpt.core import failpoints
from hpcckpt.core.options import Best, Options
from hpcckpt.core.system import FileSystem, OperatingSystem
from hpcckpt.format import layout
from hpcckpt.native.posix_files import POSIX, REAL
from hpcckpt.rundir.discovery import StepInfo, best_of, step_numbers
from hpcckpt.rundir.pins import pins_to_obey
from hpcckpt.rundir.step_list import StepList


def steps_to_keep(steps: tuple[StepInfo, ...], options: Options, pinned: Collection[int]) -> set[int]:
    """Return the steps that stay: the newest, the best, the periodic, the pinned, and whatever is damaged. Pure."""
    whole = [info.step for info in steps if info.is_restorable]
    kept = set(whole if options.max_to_keep is None else whole[-options.max_to_keep :])
    kept |= set(pinned) | {info.step for info in steps if not info.is_restorable}
    if options.keep_best is not None:
        kept |= set(best_of(steps, options.keep_best))
    if options.keep_period is not None:
        kept |= {step for step in whole if step % options.keep_period == 0}
    return kept


class RetentionPlan(NamedTuple):
    """How many restorable steps stay, which steps are retired, and what the choice of the best could not know."""

    n_kept: int
    going: tuple[StepInfo, ...] = ()
    problem: str = ""


def plan_retention(
    directory: Path,
    options: Options,
    known: StepList | None = None,
    system: OperatingSystem = REAL,
) -> RetentionPlan:
    """Decide which steps are retired, changing nothing. Root only, under the lock.

    Parameters
    ----------
    directory : pathlib.Path
        The run directory.
    options : Options
        What is to be kept.
    known : StepList, optional
        What this job knows of the steps, so that manifests that were read before are not read again.
    system : OperatingSystem
        Where the directory is.
    """
    if options.max_to_keep is None:
        return RetentionPlan(len(step_numbers(directory, system.files)))
    known = known or StepList(directory, system.files)
    steps = tuple(map(known.mark, known.discover()))
    kept = steps_to_keep(steps, options, pins_to_obey(directory, system, known.manifests) | known.kept)
    n_kept = sum(info.is_restorable and info.step in kept for info in steps)
    going = tuple(info for info in steps if info.step not in kept)
    has_metrics = any(info.manifest and info.manifest.metrics for info in steps)
    return RetentionPlan(n_kept, going, metric_problem(steps, options.keep_best) if going and has_metrics else "")


def metric_problem(steps: tuple[StepInfo, ...], best: Best | None) -> str:
    """Say that no step has the metric whose best is kept, and which there are; "" if one has. Pure."""
    if best is None or best_of(steps, best):
        return ""
    named = sorted({name for info in steps if info.manifest for name in info.manifest.metrics})
    return f"no restorable step has a finite {best.metric!r}; metrics there: {', '.join(named) or 'none'}"


def take_out_of_sight(
    path: Path, retired: Path, files: FileSystem = POSIX, is_kept: Callable[[], bool] = lambda: False
) -> bool:
    """Make a step, or what a killed job left, a directory that is no checkpoint. Root only, under the lock.

    Return False, with everything as it was, if it `is_kept` after all.
    """
    with contextlib.ExitStack() as undo:
        files.rename(path, retired)  # step a
        undo.callback(files.fsync_dir, retired.parent)
        undo.callback(files.rename, retired, path)
        if is_kept():
            return False
        undo.pop_all()
    files.fsync_dir(retired.parent)
    if layout.parse_step(path.name) is not None:
        failpoints.reached("8-retired", 0)
    files.unlink(retired / layout.MANIFEST)  # step b
    files.fsync_dir(retired)
    return True


def leftovers(directory: Path, files: FileSystem = POSIX) -> list[str]:
    """Return the names of temporary and retired directories. Independent."""
    return sorted(name for name in files.names(directory) if layout.is_temporary(name) or layout.is_retired(name))
