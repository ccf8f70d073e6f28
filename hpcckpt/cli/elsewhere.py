"""Where checkpoints are that are not where they were looked for: in run directories one level down."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from hpcckpt.errors import HpcckptError, StepNotFoundError
from hpcckpt.rundir import discovery
from hpcckpt.tools.report import run_dirs

_SHOWN = 4
_LOOKED_AT = 200


@contextlib.contextmanager
def pointing_below(directory: Path) -> Iterator[None]:
    """Add to an error about an empty directory where the checkpoints are. Independent."""
    try:
        yield
    except StepNotFoundError as error:
        raise StepNotFoundError(f"{error}{hint(directory)}") from error


def hint(directory: Path) -> str:
    """Return what to add to "no checkpoint is there": the places below, "" if there are none. Independent."""
    try:
        places = [] if discovery.step_numbers(directory) else list(islice(_runs_below(directory), _SHOWN + 1))
    except (HpcckptError, OSError):
        return ""
    return f"; its checkpoints are in {_joined(places)}" if places else ""


def _runs_below(directory: Path) -> Iterator[Path]:
    """Yield the directories one level down that hold steps, or are of a run that does; cycles in their order."""
    cycles = [part.path for part in run_dirs.cycles_of(directory)]
    names = sorted(name for name in os.listdir(directory) if not name.startswith("."))
    others = (directory / name for name in names[:_LOOKED_AT])
    for path in dict.fromkeys([*cycles, *others]):
        if run_dirs.is_own_directory(path) and _has_steps(path):
            yield path


def _has_steps(path: Path) -> bool:
    try:
        return any(discovery.step_numbers(place) for place in (path, *(part.path for part in run_dirs.cycles_of(path))))
    except (HpcckptError, OSError):  # a directory that is not readable is not suggested
        return False


def _joined(places: Sequence[Path]) -> str:
    names = [str(path) for path in places[:_SHOWN]] + ["others"] * (len(places) > _SHOWN)
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
