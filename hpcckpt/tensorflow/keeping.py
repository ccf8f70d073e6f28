"""Which checkpoints TensorFlow's manager keeps: the newest, and one every so many hours for good.

What it must remember from run to run stands in each step, and steps that are kept for good are pinned.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from hpcckpt.discovery import pins, scan

NOTE = "tensorflow.CheckpointManager"
"""Under which name a manager's note stands among the objects of a step."""
_PRESERVED = "last_preserved_timestamp"
_HOUR_S = 3600.0


class Found(NamedTuple):
    """What stands in a directory: the time of each step, by number, and when one was kept for good."""

    times: dict[int, float]
    last_preserved: float


def look(directory: Path, now: float) -> Found:
    """Return what an earlier manager has left in a directory. Root only."""
    kept, times, note = pins(directory), {}, None
    for info in scan(directory):
        if info.manifest is not None and info.is_restorable:
            times[info.step] = min(datetime.fromisoformat(info.manifest.created).timestamp(), now)
            note = info.manifest.objects.get("user", {}).get(NOTE, note)
    remembered = note.get(_PRESERVED) if isinstance(note, Mapping) else None
    # a little back, so that what is saved at once counts as later
    last = min(remembered, now) if isinstance(remembered, int | float) else min(times.values(), default=now) - 1.0
    return Found({step: when for step, when in times.items() if step not in kept}, last)


@dataclass(slots=True)
class Keeping:
    """The steps that a manager may delete, the oldest first, and the time that it goes by.

    Parameters
    ----------
    max_to_keep : int or None
        How many stay.
    every_n_hours : float or None
        How often one of those that go stays for good.
    times : dict of int to float
        When each step was saved, by number.
    last_preserved : float
        When the last one was saved that stays for good.
    """

    max_to_keep: int | None
    every_n_hours: float | None
    times: dict[int, float] = field(default_factory=dict)
    last_preserved: float = 0.0
    clock: Callable[[], float] = time.time

    def going(self, step: int) -> list[int]:
        """Return the steps that go when this one is saved, the oldest first. Pure."""
        if self.max_to_keep is None:
            return []
        after = [other for other in self.times if other != step]
        return after[: max(0, len(after) + 1 - self.max_to_keep)]

    def preserved(self, going: list[int]) -> list[int]:
        """Return those of the steps that go that are to stay for good, and remember so. Root only."""
        stay = []
        for step in going if self.every_n_hours is not None else ():
            if self.times[step] - float(self.every_n_hours or 0) * _HOUR_S >= self.last_preserved:
                self.last_preserved = self.times[step]
                stay.append(step)
        return stay

    def took(self, step: int, when: float) -> None:
        """Remember that a step was saved, and that others went for it. Independent."""
        for gone in self.going(step):
            del self.times[gone]
        self.times.pop(step, None)
        self.times[step] = when

    def note(self) -> dict[str, Any]:
        """Return what the next manager has to know. Independent."""
        return {NOTE: {_PRESERVED: self.last_preserved}}
