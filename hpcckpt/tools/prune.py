"""What ``hpcckpt prune`` removes from a run, planned purely and then carried out under the run's lock."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hpcckpt.core.options import Options
from hpcckpt.errors import LockedError, NoSpaceError, OptionError, as_failure
from hpcckpt.rundir import discovery, lock, pins
from hpcckpt.rundir.journal import Journal
from hpcckpt.rundir.leftovers import Kind, find_leftovers, is_written_now, tree_nbytes
from hpcckpt.rundir.retention import metric_problem, steps_to_keep
from hpcckpt.rundir.workspace import Workspace

LEFT: frozenset[Kind] = frozenset({"retired", "unfinished"})
"""What goes whenever no job is writing."""


@dataclass(frozen=True, slots=True)
class Removal:
    """One directory that goes: a step, or (`step` is ``None``) a leftover of some kind."""

    path: Path
    nbytes: int
    step: int | None = None
    kind: Kind | None = None


@dataclass(frozen=True, slots=True)
class PrunePlan:
    """Which steps stay and which directories go."""

    kept: tuple[int, ...]
    removals: tuple[Removal, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of all that goes; hard links to what stays count too."""
        return sum(removal.nbytes for removal in self.removals)


def plan_prune(
    directory: Path, options: Options, kinds: Collection[Kind] = LEFT, *, holds_lock: bool = False
) -> PrunePlan:
    """Decide what goes, changing nothing. Independent.

    Parameters
    ----------
    directory : pathlib.Path
        The run directory.
    options : Options
        Which steps are to be kept.
    kinds : collection of str
        Which leftovers go.
    holds_lock : bool
        Whether the caller holds the run's lock: then no job is writing, and nothing is being saved.

    Raises
    ------
    OptionError
        If no step has the metric whose best is to be kept: a misspelt name must not cost the best steps.
    """
    manifests = discovery.Manifests()
    steps = discovery.scan(directory, manifests)
    if options.keep_best is not None and not discovery.best_of(steps, options.keep_best):
        raise OptionError(f"{directory}: {metric_problem(steps, options.keep_best)}")
    kept = steps_to_keep(steps, options, pins.pins_to_obey(directory, manifests=manifests))
    if not holds_lock and is_written_now(directory):
        kinds = frozenset(kinds) - LEFT  # the running job may use them
    going = [Removal(info.path, tree_nbytes(info.path), info.step) for info in steps if info.step not in kept]
    workspace = Workspace.at(directory)
    left = [
        Removal(each.path, each.nbytes, kind=each.kind)
        for each in find_leftovers(directory, holds_lock=holds_lock)
        if each.kind in kinds and not workspace.is_reserved(each.path.name)
    ]
    return PrunePlan(tuple(sorted(kept & {info.step for info in steps})), (*going, *left))


@contextmanager
def locked_to_remove(directory: Path, plan: Callable[[], PrunePlan], by: str = "prune") -> Iterator[list[Removal]]:
    """Hold the run's lock while checkpoints are removed; yield what had to go before it could be taken. Root only.

    Where the disk is so full that not even the lock can be written, the first checkpoint that is planned to go is
    removed without it, unless another job holds it.

    Raises
    ------
    LockedError
        If another job holds the lock, or may do so.
    """
    removed: list[Removal] = []
    try:
        held = lock.RunLock.take(directory)
    except NoSpaceError:
        _check_free(directory)
        removed = [removal for removal in plan().removals if removal.step is not None][:1]
        if not removed or carry_out(directory, PrunePlan((), tuple(removed)), {removed[0].path}, by):
            raise
        held = lock.RunLock.take(directory)
    with held, Workspace.at(directory).commit_mutex:
        yield removed


def _check_free(directory: Path) -> None:
    """Raise if the lock of a run is held by a job that is not known to be dead. Independent."""
    found = lock.describe(directory)
    if found is not None and not found[1]:
        raise LockedError(f"{directory} is in use by {found[0]}; wait for it or stop it")


def carry_out(directory: Path, plan: PrunePlan, allowed: Collection[Path], by: str = "prune") -> dict[Path, str]:
    """Remove what is planned and allowed; return what could not be removed, and why. Root only, under the lock.

    The run's journal records the steps that are removed, and that the command `by` removed them.
    """
    failures: dict[Path, str] = {}
    workspace = Workspace.at(directory)
    going = [removal for removal in plan.removals if removal.path in allowed]
    for removal in going:
        try:
            if not workspace.retire(removal.path.name, removal.step):
                failures[removal.path] = "it was pinned meanwhile"
        except OSError as error:
            failures[removal.path] = as_failure(error).text
    gone = [removal.step for removal in going if removal.step is not None and removal.path not in failures]
    Journal(directory, by=by).removed(gone)
    return failures
