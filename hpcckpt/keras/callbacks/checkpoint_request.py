"""What `ModelCheckpoint` passes to the writer of its files, and the best value stored with a checkpoint."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from hpcckpt.keras.callbacks.monitor import is_better

CHECKPOINT = "checkpoint"
"""The key of the objects under which a checkpoint of `ModelCheckpoint` describes itself."""

Finished = Callable[[int, str], None]
"""Called with the epoch, from 0, and the path of what is saved."""


@dataclass(frozen=True, slots=True)
class CheckpointRequest:
    """One save.

    Attributes
    ----------
    step : int
        Number of steps that the optimizer has done.
    epoch : int
        The epoch, from 0.
    path : str
        The path without placeholders.
    metrics : mapping of str to float
        Stored with it.
    objects : mapping
        JSON values, stored with it.
    """

    step: int
    epoch: int
    path: str
    metrics: Mapping[str, float]
    objects: Mapping[str, Any]


class CheckpointRecord(NamedTuple):
    """What a step or a file records: its place, step, metrics and the user's objects."""

    place: str
    step: int
    metrics: Mapping[str, float]
    objects: object


class BestCheckpoint(NamedTuple):
    """The best value of a metric, and what recorded it."""

    value: float
    step: int
    place: str


def about(objects: object) -> Mapping[str, Any]:
    """Return how a checkpoint of `ModelCheckpoint` describes itself; empty if it is another one. Pure."""
    found = objects.get(CHECKPOINT) if isinstance(objects, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def best_of(stored: Iterable[CheckpointRecord], monitor: str, mode: str) -> BestCheckpoint | None:
    """Return the best value of a metric that a checkpoint has, or records of those before it. Pure."""
    best: BestCheckpoint | None = None
    for each in stored:
        own = about(each.objects)
        for value in (each.metrics.get(monitor), own.get("best") if own.get("monitor") == monitor else None):
            if not isinstance(value, int | float) or not math.isfinite(value):
                continue
            if best is None or is_better(value, best.value, mode):
                best = BestCheckpoint(value, each.step, each.place)
    return best
