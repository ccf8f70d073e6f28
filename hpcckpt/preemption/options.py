"""The options of a guard: read and checked on every rank, and broadcast from root."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from hpcckpt.core.durations import duration_s
from hpcckpt.errors import OptionError, Problem, list_problems
from hpcckpt.preemption.signals import signal_numbers
from hpcckpt.preemption.walltime import JobEnd, find_job_end


@dataclass(frozen=True, slots=True)
class GuardOptions:
    """The arguments of `hpcckpt.preemption.watch`, as numbers; times in seconds."""

    signals: tuple[int, ...]
    job_end: JobEnd | None
    warnings: tuple[str, ...]
    halt_every_s: float
    halt_directories: tuple[str, ...]
    period_s: float | Literal["auto"] | None
    mtbf_s: float
    max_overhead: float
    reserve_s: float | None
    patience_s: float


def read_options(
    *,
    is_root: bool,
    signals: Iterable[str | int],
    walltime: float | str | timedelta | Literal[False] | None,
    job_end: float | str | datetime | None,
    reserve: float | str | timedelta | None,
    halt_every_s: float,
    halt_directories: Iterable[str | os.PathLike[str]],
    every_n_minutes: float | Literal["auto"] | None,
    mtbf: float | str | timedelta,
    max_overhead: float,
    patience_s: float,
) -> GuardOptions:
    """Return the options of `hpcckpt.preemption.watch`; only root finds the end of the job. Independent.

    Raises
    ------
    OptionError
        Naming what is invalid.
    """
    found = find_job_end(walltime, job_end) if is_root and walltime is not False else None
    options = GuardOptions(
        signals=signal_numbers(signals),
        job_end=found.end if found else None,
        warnings=found.warnings if found else (),
        halt_every_s=float(halt_every_s),
        halt_directories=_paths(halt_directories),
        period_s=_period(every_n_minutes),
        mtbf_s=duration_s(mtbf),
        max_overhead=float(max_overhead),
        reserve_s=None if reserve is None else duration_s(reserve),
        patience_s=float(patience_s),
    )
    return _checked(options)


def _paths(directories: Iterable[str | os.PathLike[str]]) -> tuple[str, ...]:
    if isinstance(directories, str | bytes | os.PathLike):
        raise OptionError(f"halt_directories: {directories!r} – a list of directories")
    return tuple(os.fspath(each) for each in directories)


def _period(every_n_minutes: float | str | None) -> float | Literal["auto"] | None:
    if every_n_minutes is None:
        return None
    if every_n_minutes == "auto":
        return "auto"
    if isinstance(every_n_minutes, str) or not every_n_minutes > 0:
        raise OptionError(f"every_n_minutes: {every_n_minutes!r} – a positive number, 'auto', or None")
    return 60.0 * every_n_minutes


def _checked(options: GuardOptions) -> GuardOptions:
    rules = [
        ("halt_every_s", options.halt_every_s >= 0, "must not be negative"),
        ("max_overhead", 0 < options.max_overhead < 1, "must be between 0 and 1"),
        ("patience_s", options.patience_s > 0, "must be positive"),
    ]
    problems = [Problem(name, text) for name, is_met, text in rules if not is_met]
    if problems:
        raise OptionError(list_problems(problems))
    return options
