"""What is in a run directory, for tests that compare all of it."""

from __future__ import annotations

import os

from hpcckpt.rundir import journal


def listed(directory: str | os.PathLike[str]) -> list[str]:
    """Return the names in a run directory in order, but for that of its journal."""
    return sorted(set(os.listdir(directory)) - {journal.NAME})
