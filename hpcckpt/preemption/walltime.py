"""When the scheduler ends this job, and the source of that time.

Sources in order: an option; what the user or the batch script exports (``HPCCKPT_JOB_END``); what schedulers export;
their commands (``scontrol``, ``qstat``), which are run once, on root only.  Invalid values that a scheduler exports are
ignored with a warning.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import NamedTuple

from hpcckpt.core.durations import coming_s, ctime_s, duration_s, duration_text, moment_s, moment_text
from hpcckpt.errors import OptionError

Environment = Mapping[str, str]
ASKING_S = 5.0
_MAX_ANSWER = 1 << 20


class JobEnd(NamedTuple):
    """When the job ends, and the source of that time."""

    at: float
    source: str

    def __str__(self) -> str:
        return f"{moment_text(self.at)} ({self.source})"


class JobEndResult(NamedTuple):
    """The end of the job, None if it is unknown, and warnings about invalid sources."""

    end: JobEnd | None
    warnings: tuple[str, ...] = ()


def find_job_end(
    walltime: float | str | timedelta | None = None,
    job_end: float | str | datetime | None = None,
    environ: Environment = os.environ,
) -> JobEndResult:
    """Return when this job ends. Root only.

    Parameters
    ----------
    walltime : optional
        How long the job may take, from its start; see `job_start`.
    job_end : optional
        When it ends.
    environ : mapping, optional
        The environment.

    Raises
    ------
    OptionError
        If an option or ``HPCCKPT_JOB_END`` cannot be read, or both options are given.
    """
    if walltime is not None and job_end is not None:
        raise OptionError("walltime and job_end both define when the job ends: give one of them")
    if job_end is not None:
        return _not_past(JobEnd(coming_s(job_end), "job_end"), [])
    if walltime is not None:
        start, since = job_start(environ)
        return _not_past(JobEnd(start + duration_s(walltime), f"walltime, from {since}"), [])
    if environ.get("HPCCKPT_JOB_END"):
        found = _not_past(JobEnd(_own_variable("HPCCKPT_JOB_END", environ, coming_s), "HPCCKPT_JOB_END"), [])
        if found.end is not None:
            return found
        return _from_scheduler(environ, found.warnings)
    return _from_scheduler(environ)


def job_start(environ: Environment = os.environ) -> tuple[float, str]:
    """Return when this job began, at the latest when this process did, and the source. Independent."""
    if environ.get("HPCCKPT_JOB_START"):
        return _own_variable("HPCCKPT_JOB_START", environ), "HPCCKPT_JOB_START"
    began = process_began()
    for name in ("SLURM_JOB_START_TIME", "COBALT_STARTTIME"):
        try:
            start = moment_s(environ.get(name, ""))
        except OptionError:
            continue
        if start <= began:
            return start, name
    try:
        written = os.stat(environ.get("PBS_NODEFILE", "")).st_mtime  # the job's first act is to write it
    except (OSError, ValueError):
        written = began
    return (written, "PBS_NODEFILE") if written < began else (began, "the start of the program")


def process_began() -> float:
    """Return when this process began; the present time if the system does not report it. Independent."""
    try:
        with open("/proc/self/stat", encoding="utf-8", errors="replace") as file:
            ticks = int(file.read().rpartition(")")[2].split()[19])
        with open("/proc/uptime", encoding="ascii") as file:
            uptime_s = float(file.read().split()[0])
    except (OSError, ValueError, IndexError):
        return time.time()
    return time.time() - max(0.0, uptime_s - ticks / os.sysconf("SC_CLK_TCK"))


def _own_variable(name: str, environ: Environment, read: Callable[[str], float] = moment_s) -> float:
    try:
        return read(environ[name])
    except OptionError as error:
        raise OptionError(f"{name}: {error}") from error


def _not_past(end: JobEnd, warnings: list[str]) -> JobEndResult:
    """Reject an end in the past: it is left from another job, and would end every job at once."""
    late_s = time.time() - end.at
    if late_s < 0:
        return JobEndResult(end, tuple(warnings))
    text = f"by {end.source} the job ended {duration_text(late_s)} ago ({moment_text(end.at)}); ignored"
    return JobEndResult(None, (*warnings, text))


# -- schedulers ------------------------------------------------------------------------------------


def _from_scheduler(environ: Environment, before: tuple[str, ...] = ()) -> JobEndResult:
    warnings = list(before)
    for name, read in _SOURCES:
        try:
            end = read(environ)
        except (OptionError, ValueError) as error:
            warnings.append(f"{name}: {error}; ignored")
            continue
        if end is not None:
            found = _not_past(JobEnd(end, name), warnings)
            if found.end is not None:
                return found
            warnings = list(found.warnings)
    return JobEndResult(None, tuple(warnings))


def _exported(name: str, environ: Environment) -> float | None:
    text = environ.get(name)
    return coming_s(text) if text else None


def _pbs(environ: Environment) -> float | None:
    text = environ.get("PBS_WALLTIME")
    if not text:
        return None
    return job_start(environ)[0] + duration_s(float(text) if text.isdigit() else text)


def _scontrol(environ: Environment) -> float | None:
    job = environ.get("SLURM_JOB_ID", "")
    found = re.search(r"\bEndTime=(\d{4}-\S{1,30})", _ask("scontrol", "show", "job", job)) if job else None
    return coming_s(found[1]) if found else None


def _qstat(environ: Environment) -> float | None:
    """Return the end by ``qstat``: start, in local time, plus walltime."""
    job = environ.get("PBS_JOBID", "")
    answer = _ask("qstat", "-f", job) if job else ""
    limit = re.search(r"Resource_List\.walltime = (\S{1,30})", answer)
    start = re.search(r"\bstime = (\w{3} \w{3} +\d+ \d\d:\d\d:\d\d \d{4})", answer)
    if limit is None:
        return None
    began = ctime_s(start[1]) if start else job_start(environ)[0]
    return began + duration_s(limit[1])


_SOURCES: tuple[tuple[str, Callable[[Environment], float | None]], ...] = (
    ("SLURM_JOB_END_TIME", functools.partial(_exported, "SLURM_JOB_END_TIME")),
    ("COBALT_ENDTIME", functools.partial(_exported, "COBALT_ENDTIME")),
    ("PBS_WALLTIME", _pbs),
    ("scontrol", _scontrol),
    ("qstat", _qstat),
)


def _ask(*command: str) -> str:
    """Return what a scheduler's command prints; "" if there is no such command, it fails, or takes too long."""
    program = shutil.which(command[0])
    if program is None or any(word.startswith("-") for word in command[-1:]):
        return ""
    try:
        done = subprocess.run(
            [program, *command[1:]], capture_output=True, timeout=ASKING_S, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout[:_MAX_ANSWER].decode("utf-8", errors="replace") if done.returncode == 0 else ""


# -- the time that a last save takes -----------------------------------------------------------------


class TimeNeeded:
    """How long before its end a job must stop, computed from the times of its saves and steps.

    Parameters
    ----------
    left_s : float
        Seconds until the job ends.
    fixed_s : float, optional
        A fixed time instead of a computed one.
    """

    FACTOR = 2.0
    EXIT_S = 5.0
    UNMEASURED_S = 300.0
    _N = 8

    def __init__(self, left_s: float, fixed_s: float | None = None) -> None:
        self._fixed_s = fixed_s
        self._unmeasured_s = min(self.UNMEASURED_S, max(0.0, left_s) / 10.0)
        self._saves: list[float] = []
        self._n_steps = 0
        self._step_s = 0.0

    def observe_save(self, seconds: float) -> None:
        """Record how long a save took, until it was committed. Independent."""
        self._saves = [*self._saves[1 - self._N :], seconds]

    def observe_step(self, seconds: float) -> None:
        """Record the time between two batch boundaries, except the first, which compiles. Independent."""
        self._n_steps += 1
        if self._n_steps > 1:
            self._step_s = max(self._step_s, seconds)

    def seconds(self) -> float:
        """Return how long before its end the job must be requested to stop. Independent."""
        if self._fixed_s is not None:
            return self._fixed_s
        save_s = self.FACTOR * max(self._saves) + self.EXIT_S if self._saves else self._unmeasured_s
        return save_s + self.FACTOR * self._step_s


def seconds_left(end: JobEnd | None) -> float | None:
    """Return the seconds until the job ends; None if that is unknown. Independent."""
    return None if end is None else end.at - time.time()


class TimeLeft:
    """The seconds until a moment, of which the wall clock may be set back meanwhile: then time has passed all the same.

    Parameters
    ----------
    at : float or None
        The moment, by the wall clock as it is now; None if it is unknown.
    """

    def __init__(self, at: float | None) -> None:
        self._at = at
        self._ends = None if at is None else time.monotonic() + at - time.time()

    def seconds(self) -> float | None:
        """Return the seconds that are left; None if that is unknown. Independent."""
        if self._at is None or self._ends is None:
            return None
        return min(self._at - time.time(), self._ends - time.monotonic())
