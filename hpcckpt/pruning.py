"""What ``hpcckpt prune`` removes from a run, planned purely and then carried out under the run's lock."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from hpcckpt import discovery
from hpcckpt.config import Options
from hpcckpt.errors import OptionError, as_failure
from hpcckpt.journal import Journal
from hpcckpt.retention import steps_to_keep
from hpcckpt.workspace import Workspace


@dataclass(frozen=True, slots=True)
class Removal:
    """One directory that goes: a step, or (`step` is ``None``) what a killed job left."""

    path: Path
    nbytes: int
    step: int | None = None


@dataclass(frozen=True, slots=True)
class PrunePlan:
    """Which steps stay and which directories go."""

    kept: tuple[int, ...]
    removals: tuple[Removal, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of all that goes; hard links to what stays count too."""
        return sum(removal.nbytes for removal in self.removals)


def plan_prune(directory: Path, options: Options) -> PrunePlan:
    """Decide what goes, changing nothing. Independent.

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
    kept = steps_to_keep(steps, options, discovery.pins_to_obey(directory))
    going = [Removal(info.path, tree_nbytes(info.path), info.step) for info in steps if info.step not in kept]
    left = [Removal(directory / name, tree_nbytes(directory / name)) for name in Workspace.at(directory).leftovers()]
    return PrunePlan(tuple(sorted(kept & {info.step for info in steps})), (*going, *left))


def carry_out(directory: Path, plan: PrunePlan, allowed: Collection[Path]) -> dict[Path, str]:
    """Remove what is planned and allowed; return what could not be removed, and why. Root only, under the lock.

    The run's journal is told of the steps that are gone.
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
    Journal(directory, by="prune").removed(gone)
    return failures


def tree_nbytes(path: Path) -> int:
    """Return the bytes of all files below a directory, following no symbolic link. Independent."""
    total = 0
    for parent, _, names in os.walk(path):
        for name in names:
            try:
                total += os.lstat(os.path.join(parent, name)).st_size
            except OSError:
                continue  # removed by a running job meanwhile
    return total
