"""How long before its end a job is signalled to save and stop, by the time that its saves took so far."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from hpcckpt.errors import OptionError
from hpcckpt.jobs.latest_checkpoint import parts
from hpcckpt.rundir.journal import NAME, read_lines

LEAST_S = 60
UNMEASURED_S = 300
FACTOR = 2.0
MARGIN_S = 30.0
"""To finish the current batch, finalize MPI and exit."""
_LOG = "log.jsonl"
"""The log of ``hpcckpt train``; it records saves too."""
_LONGEST_S = 1e6


class Lead(NamedTuple):
    """How long before the end, and why."""

    seconds: int
    why: str


def choose_lead(run: Path | None, job_s: int, most_s: int | None = None) -> Lead:
    """Return the lead for a job of `job_s` seconds by the measured saves of its run. Independent.

    Parameters
    ----------
    run : pathlib.Path or None
        The run directory.
    job_s : int
        How long the job may take.
    most_s : int, optional
        The longest lead that its scheduler knows.

    Raises
    ------
    OptionError
        If the job is too short for it, or the scheduler cannot signal so early.
    CorruptError
        If its journal is not a regular file.
    StorageError
        If its journal cannot be read.
    """
    saves = list(_saves(run)) if run is not None else []
    if not saves:
        where = f"no save of {run} was measured" if run is not None else "no run was given to measure saves of"
        seconds = min(UNMEASURED_S, max(LEAST_S, job_s // 4))
        rule = (
            f"{seconds} s are assumed" if seconds == UNMEASURED_S else "a quarter of its time is assumed, at least 60 s"
        )
        return _fitting(Lead(seconds, f"{where}, {rule}"), job_s)
    longest = max(saves)
    seconds = max(LEAST_S, math.ceil(FACTOR * longest + MARGIN_S))
    why = f"twice the longest of {len(saves)} measured saves ({longest:.1f} s) and {MARGIN_S:.0f} s to end in"
    if seconds == LEAST_S:
        why += " are less than a minute"
    if most_s is not None and seconds > most_s:
        raise OptionError(f"--signal-lead: Slurm takes at most {most_s} s, it would be {seconds} s: {why}; give one")
    return _fitting(Lead(seconds, why), job_s)


def describe_grace(grace_s: int, lead: Lead) -> tuple[str, tuple[str, ...]]:
    """Return a line about what preemption leaves to a job, and warnings if that is less than its lead. Pure."""
    if grace_s >= lead.seconds:
        text = f"If it is preempted it has {grace_s} s (--grace) to save and to stop; it is requeued and resumes"
        return text, ()
    limit = f"its grace time is {grace_s} s (--grace)" if grace_s else "it has no grace time, only the site's KillWait"
    text = f"If it is preempted {limit}; it is requeued, and resumes from its newest checkpoint"
    warning = (
        f"--grace: {grace_s} s may be too short for a last save, which needs {lead.seconds} s ({lead.why}): "
        "save often, by every_n_batches or every_n_minutes, for the work since the last save may be lost"
    )
    return text, (warning,)


def _fitting(lead: Lead, job_s: int) -> Lead:
    if lead.seconds >= job_s:
        raise OptionError(
            f"--time: {job_s} s are too short, it would be told to stop {lead.seconds} s before its end: {lead.why}"
        )
    return lead


def _saves(run: Path) -> Iterator[float]:
    """Yield how long each save took, by the journals of a run, else by the log of its training."""
    found = [seconds for part in parts(run) for seconds in _read_seconds(part / NAME)]
    yield from found or _read_seconds(run / _LOG)


def _read_seconds(path: Path) -> list[float]:
    seconds = [entry.get("seconds") for entry in read_lines(path) if entry["event"] == "saved"]
    return [float(each) for each in seconds if isinstance(each, int | float) and 0 <= each < _LONGEST_S]
