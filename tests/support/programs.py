"""Programs that tests start: the environment in which they find the package `tests`, and the files they have open."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from tests.support.paths import ROOT


def python_path(first: str | None = None) -> str:
    """Return a PYTHONPATH with the root of the project at its end, after `first` or what is inherited."""
    before = os.environ.get("PYTHONPATH", "") if first is None else first
    return os.pathsep.join([*(part for part in before.split(os.pathsep) if part and part != str(ROOT)), str(ROOT)])


def environment(**variables: str) -> dict[str, str]:
    """Return the environment with `variables`; a PYTHONPATH among them replaces the one that is inherited."""
    return {**os.environ, **variables, "PYTHONPATH": python_path(variables.get("PYTHONPATH"))}


def open_files(pid: int | str = "self") -> list[str]:
    """Return the paths of the files that a process has open; one that is closed meanwhile may be missing."""
    found = []
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(each))
    return found
