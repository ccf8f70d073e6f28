"""Fields of journal entries, which are not trusted: a field of another type counts as missing."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from hpcckpt.format.layout import MAX_STEP

Entry = Mapping[str, Any]
LATEST_S = 32_503_680_000.0
MAX_METRICS = 64


def text_of(entry: Entry, name: str, limit: int = 500) -> str:
    """Return a text; "" if there is none. Pure."""
    value = entry.get(name)
    return value[:limit] if isinstance(value, str) else ""


def number_of(entry: Entry, name: str) -> float | None:
    """Return a finite number that is not negative; ``None`` if there is none. Pure."""
    value = entry.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value <= 1e24 else None


def count_of(entry: Entry, name: str) -> int | None:
    """Return a whole number that is not negative; ``None`` if there is none. Pure."""
    value = entry.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_STEP else None


def steps_of(entry: Entry) -> tuple[int, ...]:
    """Return the numbers of steps that an entry names; none if there are none. Pure."""
    found = entry.get("steps")
    listed = found if isinstance(found, list) else []
    return tuple(step for each in listed if (step := count_of({"steps": each}, "steps")) is not None)


def time_of(entry: Entry) -> float | None:
    """Return when it was, from seconds since 1970 or ISO 8601; ``None`` if it does not say. Pure."""
    value = entry.get("time")
    if isinstance(value, str):
        return iso_time(value)
    found = number_of(entry, "time")
    return found if found is not None and found < LATEST_S else None


def iso_time(text: str) -> float | None:
    """Return an ISO time as seconds since 1970; ``None`` if it is none, or one that no run was at. Pure."""
    try:
        found = datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        return None
    return found if 0 <= found < LATEST_S else None


def metrics_of(entry: Entry) -> dict[str, float]:
    """Return the metrics of an entry, in which NaN and infinities are texts. Pure."""
    found = entry.get("metrics")
    metrics: dict[str, float] = {}
    for name, value in list(found.items())[:MAX_METRICS] if isinstance(found, dict) else []:
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300
        if is_number or (isinstance(value, str) and value in {"nan", "inf", "-inf"}):
            metrics[name] = float(value)
    return metrics
