"""What ``hpcckpt prune`` removes from a run, planned purely and then carried out under the run's lock."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from hpcckpt.core.options import Options
from hpcckpt.errors import OptionError, as_failure
from hpcckpt.rundir import discovery, pins
from hpcckpt.rundir.journal import Journal
from hpcckpt.rundir.leftovers import Kind, find_leftovers, is_written_now, tree_nbytes
from hpcckpt.rundir.retention import steps_to_keep
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
    steps = discovery.scan(directory)
    if options.keep_best is not None and not discovery.best_of(steps, options.keep_best):
        named = sorted({name for info in steps if info.manifest for name in info.manifest.metrics})
        raise OptionError(
            f"no restorable step in {directory} has a finite {options.keep_best.metric!r}; "
            f"metrics there: {', '.join(named) or 'none'}"
        )
    kept = steps_to_keep(steps, options, pins.pins_to_obey(directory))
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


def carry_out(directory: Path, plan: PrunePlan, allowed: Collection[Path], by: str = "prune") -> dict[Path, str]:
    """Remove what is planned and allowed; return what could not be removed, and why. Root only, under the lock.

    The run's journal records the steps that are removed, and that the command `by` removed them.
    """
    failures: dict[Path, str] = {}
    workspace = Workspace.at(directory)
    going = [removal for removal in plan.removals if removal.path in allowed]
    for removal in going:
        try:
            workspace.retire(removal.path.name)
        except OSError as error:
            failures[removal.path] = as_failure(error).text
    gone = [removal.step for removal in going if removal.step is not None and removal.path not in failures]
    Journal(directory, by=by).removed(gone)
    return failures
