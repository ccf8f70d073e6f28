"""Which of two values of a metric is better, and the value that all ranks go by."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from hpcckpt.collective.communicator import Communicator
from hpcckpt.keras.versions import IS_KERAS_3


def direction(monitor: str, mode: str, model: Any) -> str:
    """Return ``"min"`` or ``"max"``, as the Keras that is running finds it. Independent.

    Raises
    ------
    ValueError
        By Keras 3's rule: if neither the name nor the metric itself says which.
    """
    if mode in {"min", "max"}:
        return mode
    if not IS_KERAS_3:
        return "max" if "acc" in monitor or monitor.startswith("fmeasure") else "min"
    name = monitor.removeprefix("val_")
    if name == "loss":
        return "min"
    for metric in _metrics(model):
        if metric.name == name and hasattr(metric, "_direction"):
            return "max" if metric._direction == "up" else "min"
    raise ValueError(
        f"ModelCheckpoint callback received monitor={monitor}, but Keras isn't able to automatically determine whether "
        "that metric should be maximized or minimized. Pass `mode='max'` in order to monitor based on the highest "
        "metric value, or pass `mode='min'` in order to use the lowest value."
    )


def has_direction(monitor: str, mode: str, model: Any) -> bool:
    """Return True if `direction` can be found yet: Keras 3 makes metrics with the first batch. Independent."""
    try:
        direction(monitor, mode, model)
    except ValueError:
        return False
    return True


def _metrics(model: Any) -> list[Any]:
    """Return a model's metrics, those within Keras 3's containers too."""
    found = []
    for metric in getattr(model, "metrics", ()):
        found += [metric, *getattr(metric, "metrics", ())]
    return found


def first_best(mode: str) -> float | None:
    """Return what the first value is compared with."""
    if IS_KERAS_3:
        return None
    return -math.inf if mode == "max" else math.inf


def is_better(value: float, best: float | None, mode: str) -> bool:
    """Return True if a value is better than the best so far. Pure."""
    if best is None:
        return True
    return bool(np.greater(value, best) if mode == "max" else np.less(value, best))


def averaged(logs: Mapping[str, Any], comm: Communicator) -> dict[str, Any]:
    """Return the mean over the ranks of what is a number on every rank, and root's of all else. Collective."""
    plain = {name: _plain(value) for name, value in logs.items()}
    every = comm.gather(plain) or []
    return comm.on_root("average logs", lambda: {name: _mean([each.get(name) for each in every]) for name in plain})


def _mean(values: list[Any]) -> Any:
    first = values[0]
    if not all(isinstance(value, int | float) for value in values) or all(value == first for value in values):
        return first
    return math.fsum(values) / len(values)


def _plain(value: Any) -> Any:
    """Return what a callback gets in its logs as Python's own, where it is one number."""
    if isinstance(value, str) or value is None:
        return value
    array = np.asarray(value)
    return array.item() if not array.ndim else array
