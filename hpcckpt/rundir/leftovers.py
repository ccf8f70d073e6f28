"""What a run directory holds beside its steps: directories moved aside, retired, prepared or left. Read only."""

from __future__ import annotations

import shlex
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from hpcckpt.core.system import FileSystem, OperatingSystem
from hpcckpt.format import layout
from hpcckpt.native.posix_files import POSIX, REAL
from hpcckpt.rundir import lock

Kind = Literal["aside", "bad", "replaced", "retired", "prepared", "saving", "unfinished"]
WORDS: dict[Kind, str] = {
    "aside": "moved aside (the run went back, was extended, or began again)",
    "bad": "damaged and replaced, kept as evidence",
    "replaced": "without their names, for a job was killed while it replaced a step",
    "retired": "retired, not removed yet",
    "prepared": "prepared for the next save of the running job",
    "saving": "being written by the running job",
    "unfinished": "left by killed jobs",
}
"""What each kind is, for people."""
REMOVED_BY: dict[Kind, str] = {
    "aside": "hpcckpt prune --aside {run}",
    "bad": "hpcckpt prune --bad {run}",
    "replaced": "the next save, which gives the name back",
    "retired": "hpcckpt prune {run}, or the next save",
    "prepared": "the running job",
    "saving": "the running job",
    "unfinished": "hpcckpt prune {run}, or the next save",
}
"""What removes each kind; ``{run}`` is the run directory."""


class Leftover(NamedTuple):
    """One directory beside the steps: its kind, its bytes, and when it was changed last (seconds since 1970)."""

    kind: Kind
    path: Path
    nbytes: int
    time: float


@dataclass(frozen=True, slots=True)
class Usage:
    """All directories of one kind; its fields are the keys of ``--json``.

    Attributes
    ----------
    kind : str
        ``aside``, ``bad``, ``replaced``, ``retired``, ``prepared``, ``saving`` or ``unfinished``.
    count, nbytes : int
        How many there are, and the bytes of their files.
    oldest : float
        When the oldest was changed last; seconds since 1970.
    words, removed_by : str
        What they are, and what removes them.
    """

    kind: Kind
    count: int
    nbytes: int
    oldest: float
    words: str
    removed_by: str


def find_leftovers(directory: Path, *, holds_lock: bool = False, system: OperatingSystem = REAL) -> list[Leftover]:
    """Return what is in a run directory beside its steps, sorted by name. Independent.

    Parameters
    ----------
    directory : pathlib.Path
        The run directory.
    holds_lock : bool
        Whether the caller holds the run's lock, so that no job is writing.
    system : OperatingSystem
        Where the directory is.
    """
    files = system.files
    try:
        names = sorted(files.names(directory))
    except (FileNotFoundError, NotADirectoryError):
        return []
    found = []
    is_busy = not holds_lock and any(map(layout.is_temporary, names)) and is_written_now(directory, system)
    for name in names:
        path = directory / name
        kind = _kind_of(path, files, is_busy=is_busy)
        if kind is not None:
            found.append(Leftover(kind, path, tree_nbytes(path, files), _modified(path, files)))
    return found


def is_written_now(directory: Path, system: OperatingSystem = REAL) -> bool:
    """Return True if a job that is not known to be dead holds the lock of a run. Independent."""
    holder = lock.describe(directory, system)
    return holder is not None and not holder[1]


def usage_of(leftovers: Sequence[Leftover]) -> tuple[Usage, ...]:
    """Return the sums of each kind. Pure."""
    kinds = [kind for kind in WORDS if any(each.kind == kind for each in leftovers)]
    return tuple(_usage(kind, [each for each in leftovers if each.kind == kind]) for kind in kinds)


def _usage(kind: Kind, found: Sequence[Leftover]) -> Usage:
    nbytes, oldest = sum(each.nbytes for each in found), min(each.time for each in found)
    removed_by = REMOVED_BY[kind].format(run=shlex.quote(str(found[0].path.parent)))
    return Usage(kind, len(found), nbytes, oldest, WORDS[kind], removed_by)


def _kind_of(path: Path, files: FileSystem, *, is_busy: bool) -> Kind | None:
    name = path.name
    if layout.is_temporary(name):
        if not is_busy:
            return "unfinished"
        return "prepared" if layout.is_prepared(name) and not _is_written(path, files) else "saving"
    if layout.is_retired(name):
        return "retired"
    if layout.is_aside(name):
        return "aside"
    if layout.is_bad(name):
        return "bad"
    original = layout.replaced_original(name)
    if original is None:
        return None
    return "retired" if files.exists(path.with_name(original)) else "replaced"


def _is_written(path: Path, files: FileSystem) -> bool:
    """Return True if files of a staging directory were written after it was prepared. Independent."""
    data = path / layout.DATA
    try:
        prepared = files.stat(path).st_mtime_ns
        return any(files.stat(data / name).st_mtime_ns > prepared for name in files.names(data))
    except OSError:  # committed or removed meanwhile
        return False


def _modified(path: Path, files: FileSystem) -> float:
    try:
        return files.lstat(path).st_mtime
    except OSError:
        return 0.0


def tree_nbytes(path: Path, files: FileSystem = POSIX) -> int:
    """Return the bytes of all files below a directory, following no symbolic link. Independent."""
    return sum(found.st_size for found in files.tree(path) if stat.S_ISREG(found.st_mode))
