"""What a batch job reads in a run directory: the checkpoint that it resumes from, and whether it was halted."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from hpcckpt.core import files
from hpcckpt.core.durations import duration_text
from hpcckpt.errors import CorruptError, HpcckptError
from hpcckpt.format import layout
from hpcckpt.rundir import discovery
from hpcckpt.tools.report.fields import iso_time


class Latest(NamedTuple):
    """The newest checkpoint that can be restored, and when it was made."""

    path: Path
    step: int
    made: float

    def __str__(self) -> str:
        return f"{self.path} ({duration_text(max(0.0, time.time() - self.made))} ago)"


def parts(run: Path) -> list[Path]:
    """Return the directories of a run that may have steps: itself, and one for each cycle. Independent."""
    try:
        inner = [each for each in run.iterdir() if each.is_dir() and not each.name.startswith(".")]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [run, *sorted(each for each in inner if layout.parse_step(each.name) is None)]


def latest(run: Path) -> Latest | None:
    """Return the newest checkpoint of a run; ``None`` if there is none. Independent."""
    return max(_newest(run), default=((), None))[1]


def _newest(run: Path) -> Iterator[tuple[tuple[float, ...], Latest | None]]:
    """Yield the newest checkpoint of each part after its times: that of the save, and the finer one of the directory.

    The time of the directory is that of a copy if the run was copied.
    """
    for part in parts(run):
        with contextlib.suppress(HpcckptError, OSError):  # it may be retired or unreadable, others not
            info = discovery.newest_restorable(part)
            if info is not None and info.manifest is not None:
                changed = os.stat(info.path).st_mtime
                made = iso_time(info.manifest.created) or changed
                yield (made, changed), Latest(info.path, info.step, made)


Halts = Mapping[Path, tuple[int, int]]
"""The obeyed files HALT of a run by directory: inode and time, of which the inode does not depend on clocks."""


def halts(run: Path) -> Halts:
    """Return the files HALT that jobs of a run have obeyed: what is new stopped the last one. Independent."""
    found: dict[Path, tuple[int, int]] = {}
    for part in parts(run):
        with contextlib.suppress(FileNotFoundError, CorruptError):
            fd = files.open_regular(str(part / layout.HALTED))  # opened, so that no cache of attributes answers
            try:
                facts = os.fstat(fd)
            finally:
                os.close(fd)
            found[part] = (facts.st_ino, facts.st_mtime_ns)
    return found
