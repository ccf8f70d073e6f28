"""Times of day and durations as people and schedulers write them."""

from __future__ import annotations

import math
import re
import time
from datetime import UTC, datetime, timedelta

from hpcckpt.errors import OptionError

_UNIT_S = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_WITH_UNIT = re.compile(r"(\d{1,12}(?:\.\d{1,9})?)\s*(s|m|min|h|d)", re.ASCII)
_CLOCK = re.compile(r"(?:(\d{1,5})-)?(?:(\d{1,7}):)?(\d{1,7}):(\d{1,2})", re.ASCII)
_CTIME = re.compile(r"\w{3} (\w{3}) +(\d{1,2}) (\d\d):(\d\d):(\d\d) (\d{4})", re.ASCII)
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_EPOCH = re.compile(r"\d{9,11}(?:\.\d{1,9})?", re.ASCII)
LATEST_S = 32_503_680_000.0
"""The year 3000: what is beyond it is not in seconds."""


def duration_s(value: float | str | timedelta) -> float:
    """Read a duration: seconds, a timedelta, ``"1:30:00"``, ``"2-12:00:00"``, ``"90m"``, ``"1.5h"``. Independent.

    Raises
    ------
    OptionError
        If it is none of these, or not positive.
    """
    if isinstance(value, timedelta):
        seconds = value.total_seconds()
    elif isinstance(value, str):
        seconds = _duration_of_text(value.strip())
    elif isinstance(value, bool) or not isinstance(value, int | float):
        raise OptionError(f"{value!r} is no duration: seconds, '1:30:00', '2-12:00:00', '90m' or '1.5h'")
    else:
        seconds = float(value)
    if not (0 < seconds < LATEST_S):
        raise OptionError(f"{value!r} is no duration: it must be positive, and less than 1000 years")
    return seconds


def _duration_of_text(text: str) -> float:
    if found := _WITH_UNIT.fullmatch(text):
        return float(found[1]) * _UNIT_S[found[2]]
    if found := _CLOCK.fullmatch(text):
        days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
        return days * 86400.0 + hours * 3600.0 + minutes * 60.0 + seconds
    raise OptionError(f"{text!r} is no duration: '1:30:00', '2-12:00:00', '90m' or '1.5h' (a bare number has no unit)")


def moment_s(value: float | str | datetime, *, fold: int = 0) -> float:
    """Read a moment as seconds since 1970: such a number, or ISO 8601, local time unless it says more. Independent.

    Of a local time that occurs twice, when daylight saving ends, it is the first one, with `fold` 1 the second.

    Raises
    ------
    OptionError
        If it is neither.
    """
    try:
        seconds = _moment_of(value, fold)
    except (ValueError, OverflowError, OSError) as error:
        raise OptionError(
            f"{value!r} is no moment: seconds since 1970, or a time such as 2026-08-27T12:00:00"
        ) from error
    if not (math.isfinite(seconds) and 0 < seconds < LATEST_S):
        raise OptionError(f"{value!r} is no moment: seconds since 1970 are expected, not milliseconds")
    return seconds


def coming_s(value: float | str | datetime, now: float | None = None) -> float:
    """Read a moment that is to come: of a local time that occurs twice the first, unless that is past. Independent.

    Raises
    ------
    OptionError
        If it is no moment.
    """
    first = moment_s(value)
    return first if first > (time.time() if now is None else now) else max(first, moment_s(value, fold=1))


def _moment_of(value: float | str | datetime, fold: int) -> float:
    if isinstance(value, datetime):
        return value.timestamp()
    if isinstance(value, str):
        text = value.strip()
        return float(text) if _EPOCH.fullmatch(text) else datetime.fromisoformat(text).replace(fold=fold).timestamp()
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("not a number")
    return float(value)


def ctime_s(text: str) -> float:
    """Read a local time that is past, as C's ``ctime`` writes it, in any locale: ``Sun Nov 22 02:00:00 2026``.

    Of one that occurs twice, when daylight saving ends, it is the second, unless that is to come. Independent.

    Raises
    ------
    OptionError
        If it is none.
    """
    found = _CTIME.fullmatch(text)  # strptime would read the names of the locale that the program has set
    try:
        if found and found[1] in _MONTHS:
            day, hour, minute, second, year = (int(part) for part in found.groups()[1:])
            first = datetime(year, _MONTHS.index(found[1]) + 1, day, hour, minute, second)  # noqa: DTZ001
            last_s = first.replace(fold=1).timestamp()
            return last_s if last_s <= time.time() else first.timestamp()
    except (ValueError, OverflowError):
        pass
    raise OptionError(f"{text!r} is no moment: a time such as Sun Nov 22 02:00:00 2026 is expected")


def moment_text(seconds: float) -> str:
    """Return a moment for people, in UTC. Independent."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def duration_text(seconds: float) -> str:
    """Return a duration for people: ``1:30:00``, ``2-12:00:00``. Independent."""
    whole = round(seconds)
    days, rest = divmod(whole, 86400)
    clock = f"{rest // 3600}:{rest // 60 % 60:02}:{rest % 60:02}"
    return f"{days}-{clock}" if days else clock
