"""When the scheduler ends this job, and who says so.

An option comes first, then what the user or the batch script exports (``HPCCKPT_JOB_END``), then what schedulers
export, then, once and on root alone, what they answer when asked (``scontrol``, ``qstat``).  Of what is exported by a
scheduler nothing is believed that makes no sense: it is passed over with a warning.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import NamedTuple

from hpcckpt.errors import OptionError
from hpcckpt.preemption.clock import ctime_s, duration_s, duration_text, moment_s, moment_text

Environment = Mapping[str, str]
ASKING_S = 5.0
_MAX_ANSWER = 1 << 20


class JobEnd(NamedTuple):
    """When the job ends, and who says so."""

    at: float
    source: str

    def __str__(self) -> str:
        return f"{moment_text(self.at)} ({self.source})"


class Found(NamedTuple):
    """What was found out about the end of the job; `end` is ``None`` if nobody knows."""

    end: JobEnd | None
    warnings: tuple[str, ...] = ()


def find_job_end(
    walltime: float | str | timedelta | None = None,
    job_end: float | str | datetime | None = None,
    environ: Environment = os.environ,
) -> Found:
    """Find out when this job ends. Root only.

    Parameters
    ----------
    walltime : optional
        How long the job may take, from its start on; see `job_start`.
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
        raise OptionError("walltime and job_end both say when the job ends: give one of them")
    if job_end is not None:
        return _not_past(JobEnd(moment_s(job_end), "job_end"), [])
    if walltime is not None:
        start, since = job_start(environ)
        return _not_past(JobEnd(start + duration_s(walltime), f"walltime, from {since}"), [])
    if environ.get("HPCCKPT_JOB_END"):
        found = _not_past(JobEnd(_own_variable("HPCCKPT_JOB_END", environ), "HPCCKPT_JOB_END"), [])
        if found.end is not None:
            return found
        return _from_scheduler(environ, found.warnings)
    return _from_scheduler(environ)


def job_start(environ: Environment = os.environ) -> tuple[float, str]:
    """Return when this job began, and who says so; at the latest when this process did. Independent."""
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
    """Return when this process began; now, where the system does not say. Independent."""
    try:
        with open("/proc/self/stat", encoding="utf-8", errors="replace") as file:
            ticks = int(file.read().rpartition(")")[2].split()[19])
        with open("/proc/uptime", encoding="ascii") as file:
            uptime_s = float(file.read().split()[0])
    except (OSError, ValueError, IndexError):
        return time.time()
    return time.time() - max(0.0, uptime_s - ticks / os.sysconf("SC_CLK_TCK"))


def _own_variable(name: str, environ: Environment) -> float:
    try:
        return moment_s(environ[name])
    except OptionError as error:
        raise OptionError(f"{name}: {error}") from error


def _not_past(end: JobEnd, warnings: list[str]) -> Found:
    """Take an end for nothing that is past: it is left from another job, and would end every job at once."""
    late_s = time.time() - end.at
    if late_s < 0:
        return Found(end, tuple(warnings))
    text = f"{end.source} says the job ended {duration_text(late_s)} ago ({moment_text(end.at)}); it is not believed"
    return Found(None, (*warnings, text))


# -- what schedulers say ---------------------------------------------------------------------------


def _from_scheduler(environ: Environment, before: tuple[str, ...] = ()) -> Found:
    warnings = list(before)
    for name, read in _SOURCES:
        try:
            end = read(environ)
        except (OptionError, ValueError) as error:
            warnings.append(f"{name}: {error}; passed over")
            continue
        if end is not None:
            found = _not_past(JobEnd(end, name), warnings)
            if found.end is not None:
                return found
            warnings = list(found.warnings)
    return Found(None, tuple(warnings))


def _slurm(environ: Environment) -> float | None:
    text = environ.get("SLURM_JOB_END_TIME")
    return moment_s(text) if text else None


def _cobalt(environ: Environment) -> float | None:
    text = environ.get("COBALT_ENDTIME")
    return moment_s(text) if text else None


def _pbs(environ: Environment) -> float | None:
    text = environ.get("PBS_WALLTIME")
    if not text:
        return None
    return job_start(environ)[0] + duration_s(float(text) if text.isdigit() else text)


def _scontrol(environ: Environment) -> float | None:
    job = environ.get("SLURM_JOB_ID", "")
    found = re.search(r"\bEndTime=(\d{4}-\S{1,30})", _ask("scontrol", "show", "job", job)) if job else None
    return moment_s(found[1]) if found else None


def _qstat(environ: Environment) -> float | None:
    """Ask PBS: its start time in the job's local time, and its walltime."""
    job = environ.get("PBS_JOBID", "")
    answer = _ask("qstat", "-f", job) if job else ""
    limit = re.search(r"Resource_List\.walltime = (\S{1,30})", answer)
    start = re.search(r"\bstime = (\w{3} \w{3} +\d+ \d\d:\d\d:\d\d \d{4})", answer)
    if limit is None:
        return None
    began = ctime_s(start[1]) if start else job_start(environ)[0]
    return began + duration_s(limit[1])


_SOURCES: tuple[tuple[str, Callable[[Environment], float | None]], ...] = (
    ("SLURM_JOB_END_TIME", _slurm),
    ("COBALT_ENDTIME", _cobalt),
    ("PBS_WALLTIME", _pbs),
    ("scontrol", _scontrol),
    ("qstat", _qstat),
)


def _ask(*command: str) -> str:
    """Return what a scheduler's command prints; "" if there is none, or it does not answer soon."""
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


# -- how much of it a last save takes ----------------------------------------------------------------


class TimeNeeded:
    """How long before its end a job must stop: learned from the saves and the steps it has made.

    Parameters
    ----------
    left_s : float
        What is left of the job now.
    fixed_s : float, optional
        Always this instead.
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
        """Take in how long a save lasted, until it was committed. Independent."""
        self._saves = [*self._saves[1 - self._N :], seconds]

    def observe_step(self, seconds: float) -> None:
        """Take in the time between two batch boundaries; the first one, which compiles, is left out. Independent."""
        self._n_steps += 1
        if self._n_steps > 1:
            self._step_s = max(self._step_s, seconds)

    def seconds(self) -> float:
        """Return how long before its end the job must be asked to stop. Independent."""
        if self._fixed_s is not None:
            return self._fixed_s
        save_s = self.FACTOR * max(self._saves) + self.EXIT_S if self._saves else self._unmeasured_s
        return save_s + self.FACTOR * self._step_s


def seconds_left(end: JobEnd | None) -> float | None:
    """Return how long the job has still; ``None`` if nobody knows. Independent."""
    return None if end is None else end.at - time.time()
