"""What a batch job looks for in a run directory: what it goes on from, and whether people have halted it."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from hpcckpt import discovery, layout
from hpcckpt.errors import HpcckptError
from hpcckpt.journal import read_journal
from hpcckpt.preemption.clock import duration_text


class Latest(NamedTuple):
    """The newest checkpoint that can be restored, and since when it stands."""

    path: Path
    step: int
    made: float

    def __str__(self) -> str:
        return f"{self.path} ({duration_text(max(0.0, time.time() - self.made))} ago)"


def parts(run: Path) -> list[Path]:
    """Return the directories of a run that may have steps: itself, and one for each cycle. Independent."""
    try:
        inner = [each for each in run.iterdir() if each.is_dir() and not each.name.startswith(".")]
    except OSError:
        return []
    return [run, *sorted(each for each in inner if layout.parse_step(each.name) is None)]


def latest(run: Path) -> Latest | None:
    """Return the newest checkpoint of a run; ``None`` if there is none. Independent."""
    return max(_newest(run), key=lambda found: found.made, default=None)


def _newest(run: Path) -> Iterator[Latest]:
    for part in parts(run):
        with contextlib.suppress(HpcckptError, OSError):  # it may be retired, or unreadable: others are there
            info = discovery.newest_restorable(part)
            if info is not None:
                yield Latest(info.path, info.step, os.stat(info.path).st_mtime)


def was_halted(run: Path, since: float) -> bool:
    """Say whether a file HALT has stopped the run since a moment: then people want it to stand still. Independent."""
    for part in parts(run):
        try:
            entries = read_journal(part)
        except (HpcckptError, OSError):
            continue
        if any(entry["event"] == "halted" and _time(entry) >= since for entry in entries):
            return True
    return False


def _time(entry: dict[str, object]) -> float:
    when = entry.get("time")
    return float(when) if isinstance(when, int | float) else 0.0
