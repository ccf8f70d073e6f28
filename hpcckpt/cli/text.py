"""How numbers, times and shapes are written for people."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from datetime import datetime

from hpcckpt.errors import printable


def time_text(created: str, *, has_zone: bool = True) -> str:
    """Return an ISO time as local time to the second, with its zone; its beginning if it cannot be read, "-" if none.

    It is what a manifest says, which may come from anywhere.
    """
    now = datetime.now().astimezone()
    try:
        moment = datetime.fromisoformat(created).astimezone(now.tzinfo)  # today's offset, so that all times compare
    except (ValueError, OverflowError):
        return one_line(created)[:_ISO_LENGTH] or "-"
    text = f"{moment:%Y-%m-%d %H:%M:%S}"
    return f"{text} {zone_text()}" if has_zone else text


_ISO_LENGTH = len("2026-11-26T20:44:09+00:00")


def one_line(text: str) -> str:
    """Return text from an untrusted source that begins no line and steers no terminal, with escapes. Pure."""
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")


def zone_text() -> str:
    """Return the name of the local time zone: ``UTC``, ``CET``, ``UTC+03``."""
    name = datetime.now().astimezone().tzname() or "UTC"
    return f"UTC{name}" if name[:1] in "+-" else name


def number_text(value: float | None) -> str:
    """Return a metric or a difference in at most five significant digits; "-" if there is none."""
    if value is None:
        return "-"
    return f"{value:.5g}" if math.isfinite(value) else str(value)


def metric_text(value: float | None) -> str:
    """Return a metric with four decimals, so that a column of them lines up; "-" if there is none."""
    if value is None or not math.isfinite(value):
        return number_text(value)
    return f"{value:.4f}" if value == 0 or 1e-3 <= abs(value) < 1e6 else f"{value:.4e}"


def shape_text(shape: Sequence[int]) -> str:
    """Return a shape as ``[3, 3, 64]``."""
    return f"[{', '.join(map(str, shape))}]"


def count_text(count: int, noun: str, plural: str = "") -> str:
    """Return a count with its noun: ``1 step``, ``2 steps``."""
    return f"{count} {noun if count == 1 else plural or f'{noun}s'}"


def labelled(step: int | None, problem: str) -> str:
    """Return a problem with the step it is about before it, once."""
    if step is None:
        return f"a save: {problem}"
    label = f"step {step}: "
    return problem if problem.startswith(label) else label + problem


def readers_text(files: Sequence[str]) -> str:
    """Say of pins that readers hold which step is read, and what to do."""
    step = os.path.basename(files[0]).partition(".")[0]
    return f"{step} is being read by a program: wait for its end, or if it has ended, remove {' '.join(files)}"
