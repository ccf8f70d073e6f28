"""Durations, rates and moments in words, for people. Pure."""

from __future__ import annotations

from datetime import datetime

from hpcckpt.core.units import nbytes_text
from hpcckpt.tools.report.history import Change

MAX_SHOWN = 8


def duration_words(seconds: float | None) -> str:
    """Return a duration in its two largest units: ``850 ms``, ``12.3 s``, ``9 min 20 s``, ``2 d 4 h``; "-" without."""
    if seconds is None:
        return "-"
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms" if seconds >= 0.00995 else f"{seconds * 1000:.1f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for large, small, unit, part in ((86400, 3600, "d", "h"), (3600, 60, "h", "min"), (60, 1, "min", "s")):
        if whole >= large:
            rest = whole % large // small
            return f"{whole // large} {unit}" + (f" {rest} {part}" if rest else "")
    return f"{seconds:.1f} s"


def size_words(nbytes: float) -> str:
    """Return a size in three digits: ``506 MiB``, ``3.2 GiB``, ``0 B``."""
    number, _, unit = nbytes_text(nbytes).partition(" ")
    value = float(number)
    if value >= 99.95:
        return f"{value:.0f} {unit}"
    return f"{value:.{1 if value >= 9.995 else 2}f}".rstrip("0").rstrip(".") + f" {unit}"


def rate_words(nbytes_per_second: float | None) -> str:
    """Return a bandwidth: ``1.2 GiB/s``."""
    return "-" if nbytes_per_second is None else f"{size_words(nbytes_per_second)}/s"


def percent_words(part: float | None) -> str:
    """Return a part as a percentage in two or three digits."""
    if part is None:
        return "-"
    return f"{100 * part:.2f} %" if part < 0.0995 else f"{100 * part:.1f} %"


def moment_words(seconds: float) -> str:
    """Return a moment in local time, with its zone; "-" after the year 9999, as file systems may say."""
    try:
        return f"{datetime.fromtimestamp(seconds).astimezone():%Y-%m-%d %H:%M:%S %Z}"
    except (ValueError, OverflowError, OSError):
        return "-"


_DONE = {"copy": "copied", "repair": "repaired", "reshard": "resharded"}


def change_words(change: Change) -> str:
    """Return a change that was made by hand: ``removed steps 10, 20 (hpcckpt prune)``."""
    shown = ", ".join(map(str, change.steps[:MAX_SHOWN])) + (
        f" and {change.n_steps - MAX_SHOWN:,} more" if change.n_steps > MAX_SHOWN else ""
    )
    what = f"{'step' if change.n_steps == 1 else 'steps'} {shown}"
    text = f"{_DONE.get(change.verb, 'removed')} {what}{f' from {change.source}' if change.source else ''}"
    return " ".join([*([f"{change.part}:"] if change.part else []), text, f"(hpcckpt {change.verb})"])


def count_words(count: int, noun: str) -> str:
    """Return a count with its noun: ``1 step``, ``2 steps``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
