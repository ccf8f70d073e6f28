"""Which run directories a run is made of: one as a rule, one for each cycle where ``hpcckpt train`` made it."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

from hpcckpt.errors import StepNotFoundError
from hpcckpt.rundir import discovery, journal

LOG = "log.jsonl"
"""What `hpcckpt train` writes into its run directory, above the cycles."""
_CYCLE = re.compile(r"cycle-([1-9][0-9]{0,5})")


class RunPart(NamedTuple):
    """A directory that holds steps. Its name is "" where it is the whole run, else ``cycle-2``."""

    name: str
    path: Path

    @property
    def cycle(self) -> int | None:
        """The number of the cycle."""
        found = _CYCLE.fullmatch(self.name)
        return int(found[1]) if found else None


def parts_of(directory: Path) -> list[RunPart]:
    """Return the directories of a run that hold steps or a journal, in the order of their cycles. Independent.

    Raises
    ------
    StepNotFoundError
        If the directory does not exist, or holds nothing of a run.
    """
    if not directory.is_dir():
        what = "is not a directory" if directory.exists() else "does not exist"
        raise StepNotFoundError(f"{directory} {what}: give the directory of a run")
    found = [RunPart("", directory)] if _is_run(directory) else []
    found += [part for part in cycles_of(directory) if _is_run(part.path)]
    if not found:
        raise StepNotFoundError(f"{directory} holds neither steps nor a journal: give the directory of a run")
    return found


def cycles_of(directory: Path) -> list[RunPart]:
    """Return the directories of the cycles of a run, in their order. Independent."""
    numbers = {int(match[1]): name for name in os.listdir(directory) if (match := _CYCLE.fullmatch(name))}
    return [
        RunPart(name, directory / name) for _, name in sorted(numbers.items()) if is_own_directory(directory / name)
    ]


def is_own_directory(path: Path) -> bool:
    """Return True for a directory that is not a link: those of a run never are links. Independent."""
    return path.is_dir() and not path.is_symlink()


def _is_run(directory: Path) -> bool:
    return (directory / journal.NAME).is_file() or bool(discovery.step_numbers(directory))
