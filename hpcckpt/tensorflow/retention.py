"""Which checkpoints TensorFlow's manager keeps: the newest, the best, and one every N hours permanently.

What it must remember between runs is stored in each step, and steps that are kept permanently are pinned.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from hpcckpt.core.durations import moment_s
from hpcckpt.core.options import Best
from hpcckpt.errors import NoRestorableStepError, OptionError
from hpcckpt.rundir.discovery import StepInfo, best_by, require_restorable, scan
from hpcckpt.rundir.pins import pins

NOTE = "tensorflow.CheckpointManager"
"""The key of a manager's note among the objects of a step."""
_PRESERVED, _TIMES = "last_preserved_timestamp", "timestamps"
_HOUR_S = 3600.0


class SavedAt(NamedTuple):
    """When a step was saved, and its metrics."""

    time_s: float
    metrics: Mapping[str, float]


class RetentionRecord(NamedTuple):
    """The steps, when one was kept for good, and why none can be restored ("" if one can)."""

    steps: dict[int, SavedAt]
    last_preserved: float
    problem: str = ""


def now() -> float:
    """Return the time, in seconds."""
    return time.time()


def look(directory: Path, when: float) -> RetentionRecord:
    """Return what an earlier manager has left in a directory. Root only."""
    kept, steps = pins(directory), {}
    last: float | None = None
    infos = scan(directory)
    for info in infos:
        if info.manifest is not None and info.is_restorable:
            note = info.manifest.objects.get("user", {}).get(NOTE)
            note = note if isinstance(note, Mapping) else {}
            created = _moment(info.manifest.created, when)
            time_s = min(_number(note.get(_TIMES, {}).get(str(info.step)), created), when)
            steps[info.step] = SavedAt(time_s, info.manifest.metrics)
            last = _number(note.get(_PRESERVED), last)
    # a little back, so that what is saved at once counts as later
    oldest = min((saved.time_s for saved in steps.values()), default=when) - 1.0
    deletable = {step: saved for step, saved in steps.items() if step not in kept}
    return RetentionRecord(deletable, oldest if last is None else last, _problem(directory, infos))


def _moment(created: str, otherwise: float) -> float:
    """Return when a step was saved by its manifest, which may come from anywhere. Pure."""
    try:
        return moment_s(created)
    except OptionError:
        return otherwise


def _problem(directory: Path, infos: tuple[StepInfo, ...]) -> str:
    """Return why none of the steps can be restored; "" if one can, or there are none. Independent."""
    try:
        require_restorable(directory, infos)
    except NoRestorableStepError as error:
        return str(error)
    return ""


def _number(value: Any, default: Any) -> Any:
    return value if isinstance(value, int | float) else default


@dataclass(slots=True)
class Keeping:
    """The steps that a manager may delete, the oldest first, and the time that it goes by.

    Parameters
    ----------
    max_to_keep : int or None
        How many stay.
    every_n_hours : float or None
        How often one of those that go stays for good.
    best : Best or None
        Which stay besides, as long as a metric is best there.
    steps : dict of int to SavedAt
        The steps by number.
    last_preserved : float
        When the last one was saved that stays for good.
    """

    max_to_keep: int | None
    every_n_hours: float | None
    best: Best | None = None
    steps: dict[int, SavedAt] = field(default_factory=dict)
    last_preserved: float = 0.0

    def going(self, step: int, metrics: Mapping[str, float]) -> list[int]:
        """Return the steps that go when this one is saved, the oldest first. Pure."""
        if self.max_to_keep is None:
            return []
        others = [other for other in self.steps if other != step]
        oldest = others[: max(0, len(others) + 1 - self.max_to_keep)]
        if self.best is None:
            return oldest
        best = best_by({**{other: self.steps[other].metrics for other in others}, step: metrics}, self.best)
        return [other for other in oldest if other not in best]

    def preserved(self, going: list[int]) -> list[int]:
        """Return those of the steps that go that are to stay for good, and remember so. Root only."""
        stay = []
        for step in going if self.every_n_hours is not None else ():
            time_s = self.steps[step].time_s
            if time_s - float(self.every_n_hours or 0) * _HOUR_S >= self.last_preserved:
                self.last_preserved = time_s
                stay.append(step)
        return stay

    def took(self, step: int, saved: SavedAt) -> None:
        """Remember that a step was saved, and that others went for it: old ones, or newer ones aside. Independent."""
        for gone in [*self.going(step, saved.metrics), *(other for other in self.steps if other > step)]:
            self.steps.pop(gone, None)
        self.steps.pop(step, None)
        self.steps[step] = saved

    def note(self, step: int, when: float) -> dict[str, Any]:
        """Return what the next manager has to know of a step. Independent."""
        return {NOTE: {_PRESERVED: self.last_preserved, _TIMES: {str(step): when}}}
