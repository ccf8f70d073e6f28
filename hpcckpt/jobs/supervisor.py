"""``hpcckpt supervise``: what a batch job does around its one step.

1. Log what this job is, how long it has, and the checkpoint that it resumes from.
2. Start the step, and forward to its ranks the signals that request a stop.
3. List the checkpoints in the run directory.
4. Put the job into the queue again, end the chain, or do nothing: by the exit code of the step.

======  ======================================================================================
code    what it means
======  ======================================================================================
0       done: the chain ends
75      checkpointed, please requeue: requeued, unless the job was restarted too often, was
        halted, or was ended by a person long before its time
8       failed, if the run stays locked; the same as 75, if the job has to stop before it is free
other   failed: the chain ends
======  ======================================================================================

A job that the scheduler itself has ended, because a node is lost, is left to the scheduler, whatever the code.  One
that it preempts is put into the queue again, unless the scheduler has done so: at once if it is being ended, else when
the step has ended, for every code except 0.

A step that finds the run locked (code 8) is started again for some time.  A job whose node is lost keeps its lock: it
is only known to be dead when its heartbeat has stopped for long enough, and Slurm may restart the job before that.

Logging, and reading the run directory, may fail: neither the step nor the decision about the job depends on them.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from hpcckpt.core.durations import duration_text
from hpcckpt.core.std_streams import flush_or_discard
from hpcckpt.core.units import nbytes_text
from hpcckpt.errors import LockedError, OptionError, RetryError
from hpcckpt.jobs import latest_checkpoint
from hpcckpt.jobs.child_process import Deadline, Log, SignalPipe, StepResult, started
from hpcckpt.jobs.requeue_policy import JobCircumstances, RequeueDecision, decide
from hpcckpt.jobs.schedulers import ATTEMPT, REQUEST, JobState, Scheduler, act, may_be_done
from hpcckpt.preemption import EXIT_CODE
from hpcckpt.preemption.walltime import JobEnd, seconds_left
from hpcckpt.tools.doctor.scratch import find_scratch, free_space

BUSY_S = 900.0
"""For how long a step that finds its run locked is started again: a lock expires after 600 s without a heartbeat."""
BUSY_PAUSE_S = 30.0
TOOL_S = 60.0
RETRY_S = 300.0
"""For how long a command that the scheduler refuses is repeated: the scheduler may be busy, or restarting."""
RETRY_PAUSE_S = 15.0
FINAL = re.compile(r"(?i)there is no|disabled|denied|not requeu|not permitted|invalid|illegal|unauthorized|unknown")
"""Answers of a scheduler that will not change."""
ALREADY = re.compile(r"(?i)pending execution")
"""Slurm's answer if the job is in the queue already: it was put there before, and that answer was lost."""
_Found = TypeVar("_Found")


@dataclass(frozen=True, slots=True)
class SuperviseSettings:
    """The options of ``hpcckpt supervise``.

    Attributes
    ----------
    command : tuple of str
        The step: a launcher, and the program that it launches.
    run : pathlib.Path or None
        The run directory.
    max_restarts : int
        How often the job may be put into the queue again in total.
    lead_s : float or None
        Seconds before the end of the job at which the step is signalled, if the scheduler does not do it.
    chain : str
        The name of the chain that this job belongs to; "" if there is none.
    shows_tables : bool
        Whether the output of ``doctor`` and ``list`` is printed to stdout.
    """

    command: tuple[str, ...]
    run: Path | None = None
    max_restarts: int = 20
    lead_s: float | None = None
    chain: str = ""
    shows_tables: bool = True


class SuperviseResult(NamedTuple):
    """The outcome of a job: its exit code, and the document for ``--json``."""

    code: int
    document: Mapping[str, Any]


def supervise(settings: SuperviseSettings, scheduler: Scheduler, log: Log) -> SuperviseResult:
    """Run the step of a batch job, then requeue or end the job. Independent, and outside of MPI.

    Raises
    ------
    OptionError
        If the step cannot be started, or an option or variable for the end of the job is invalid.
    """
    with SignalPipe() as signals:
        end = log_job(settings, scheduler, log)  # step 1
        halts = _halts(settings, log)
        environ = {**os.environ, **step_environment_of(settings, scheduler, end)}
        deadline = Deadline() if end is None else Deadline(end.at, settings.lead_s)
        try:
            ended = _run_step(settings, environ, scheduler, signals, deadline, log)  # step 2
        except OptionError:
            if settings.chain:
                failed = RequeueDecision("failed: the step cannot be started", 2, scheduler.end_chain(settings.chain))
                carry_out(failed, settings, scheduler, log)
            raise
        left_s, ended_at = deadline.seconds_to_end(), time.time()
        show(settings, log)  # step 3
        if ended.term_at is None and signal.SIGTERM in signals.wait(0):
            ended = ended._replace(term_at=time.time())
        if left_s is not None and ended.term_at is not None:
            left_s += ended_at - ended.term_at
        is_halted = _is_halted(halts, _halts(settings, log))
        about = _circumstances(settings, scheduler.state())._replace(is_halted=is_halted, left_s=left_s)
        decision = decide(ended, about, scheduler)
        carry_out(decision, settings, scheduler, log)  # step 4
    facts = {"job": scheduler.job_id, "scheduler": scheduler.name, "restarts": scheduler.restarts, "run": settings.run}
    return SuperviseResult(decision.code, {**facts, **ended._asdict(), "verdict": decision._asdict()})


def _circumstances(settings: SuperviseSettings, state: JobState) -> JobCircumstances:
    return JobCircumstances(
        settings.max_restarts, settings.chain,
        is_taken=not state.is_running, is_requeued=state.is_requeued, is_preempted=state.is_preempted,
    )  # fmt: skip


def _requeue_preempted(settings: SuperviseSettings, scheduler: Scheduler, log: Log) -> None:
    """Requeue a job that is being ended by preemption, before its step ends: its save may take longer than it has."""
    state = scheduler.state()
    if state.is_preempted and not state.is_running:
        killed = StepResult(128 + signal.SIGTERM, "SIGTERM", 0.0)
        carry_out(decide(killed, _circumstances(settings, state), scheduler), settings, scheduler, log)


def _halts(settings: SuperviseSettings, log: Log) -> latest_checkpoint.Halts | None:
    run = settings.run
    return None if run is None else _or_default(lambda: latest_checkpoint.halts(run), None, log)


def _is_halted(before: latest_checkpoint.Halts | None, after: latest_checkpoint.Halts | None) -> bool:
    """Return True if a file HALT was obeyed meanwhile; False if unknown, for then the job is requeued. Pure."""
    return before is not None and after is not None and any(before.get(part) != after[part] for part in after)


def _or_default(look: Callable[[], _Found], otherwise: _Found, log: Log) -> _Found:
    """Return the result of reading the run directory or scratch; if that fails, warn and return `otherwise`."""
    try:
        return look()
    except Exception as error:  # noqa: BLE001 - files may be damaged, and the job does not depend on them
        log(f"warning: {type(error).__name__}: {error}")
        return otherwise


# -- 1. what this job is ---------------------------------------------------------------------------


def log_job(settings: SuperviseSettings, scheduler: Scheduler, log: Log) -> JobEnd | None:
    """Log this job's identity, time and checkpoint; return when it ends. Independent."""
    found = scheduler.job_end()
    left_s = seconds_left(found.end)
    words = [
        f"job={scheduler.job_id}",
        f"scheduler={scheduler.name}",
        f"host={socket.gethostname()}",
        f"restart={scheduler.restarts}/{settings.max_restarts}",
        f"left={'unknown' if left_s is None else duration_text(left_s)}",
    ]
    if found.end is not None:
        words.append(f"end={str(found.end).replace(' ', '')}")
    if settings.chain:
        words.append(f"chain={settings.chain}")
    log(" ".join(words))
    for warning in found.warnings:
        log(f"warning: {warning}")
    run = settings.run
    if run is not None:
        log(f"run={run} latest={_or_default(lambda: latest_checkpoint.latest(run), None, log) or 'none'}")
    elif scheduler.requeue() is not None:
        log("warning: without --run a file HALT is not noticed: the job is put into the queue again even if halted")
    _or_default(lambda: _log_scratch(log), None, log)
    if settings.shows_tables:
        _tool("doctor", "--quick", "--quiet", *([] if settings.run is None else [str(settings.run)]))
    return found.end


def _log_scratch(log: Log) -> None:
    found = find_scratch(os.environ)
    if found.chosen is not None:
        free, _ = free_space(found.chosen)
        log(f"scratch={found.chosen} free={'unknown' if free is None else nbytes_text(free)}")
    wanted = os.environ.get("HPCCKPT_SCRATCH")
    for path, source, reason in found.rejected:
        if found.chosen is None or str(path) == wanted:
            log(f"warning: {path} ({source}) is not a scratch directory: {reason}")


def step_environment_of(settings: SuperviseSettings, scheduler: Scheduler, end: JobEnd | None) -> dict[str, str]:
    """Return the variables to set for the ranks; those that do not depend on this job keep the user's values."""
    found = dict(scheduler.step_environment())
    scratch = find_scratch(os.environ).chosen
    if scratch is not None:
        found["HPCCKPT_SCRATCH"] = str(scratch)
    kept = {name: os.environ.get(name) or value for name, value in found.items()}
    kept["HPCCKPT_RESTART_COUNT"] = str(scheduler.restarts)
    kept[REQUEST] = settings.chain or scheduler.request  # the jobs of a chain are one request too
    # a count may be unknown, so the session of the batch script is named too
    kept[ATTEMPT] = f"{scheduler.job_id}/{scheduler.restarts}/{socket.gethostname()}/{os.getsid(0)}"
    if end is not None:
        kept["HPCCKPT_JOB_END"] = f"{end.at:.0f}"
    if settings.run is not None:
        kept["HPCCKPT_RUN"] = str(settings.run)
    return kept


# -- 2. its step -----------------------------------------------------------------------------------


def _run_step(
    settings: SuperviseSettings,
    environ: Mapping[str, str],
    scheduler: Scheduler,
    signals: SignalPipe,
    deadline: Deadline,
    log: Log,
) -> StepResult:
    """Run the step; repeat it while its run is locked by a job that may be dead. Independent."""
    patience_ends = time.monotonic() + BUSY_S
    while True:
        log(f"step: {shlex.join(settings.command)}")
        with started(settings.command, environ, scheduler, log) as step:
            ended = step.wait_and_forward(signals, deadline, lambda: _requeue_preempted(settings, scheduler, log))
        by = f" asked_by={ended.asked_by}" if ended.asked_by else ""
        log(f"step ended code={ended.code} seconds={ended.seconds:.0f}{by}")
        if ended.code != LockedError.exit_code or ended.asked_by or time.monotonic() > patience_ends:
            return ended
        log(f"the run is locked by another job, which may be dead: the step is started again in {BUSY_PAUSE_S:.0f} s")
        environ = {**environ, ATTEMPT: f"{environ[ATTEMPT]}+"}  # of a step that had begun, and lost the lock
        asked = _wait_before_restart(signals, deadline)
        if asked:
            log(f"signal={asked}: the step is not started again")
            if asked == "SIGINT":
                return ended._replace(code=128 + signal.SIGINT, asked_by=asked)
            return ended._replace(asked_by=asked, term_at=time.time() if asked == "SIGTERM" else None)


def _wait_before_restart(signals: SignalPipe, deadline: Deadline) -> str:
    """Wait before the step is started again; return the signal that requests a stop meanwhile, or "". Independent."""
    left_s = deadline.left_s()
    received = signals.pause(BUSY_PAUSE_S if left_s is None else min(BUSY_PAUSE_S, left_s))
    if received is not None:
        return received.name
    return "SIGUSR1" if left_s is not None and left_s <= BUSY_PAUSE_S else ""


# -- 3. the run directory --------------------------------------------------------------------------


def show(settings: SuperviseSettings, log: Log) -> None:
    """List the checkpoints of a run on stdout, as ``hpcckpt list`` does. Independent."""
    run = settings.run
    found = (
        None
        if run is None or not settings.shows_tables
        else _or_default(lambda: latest_checkpoint.latest(run), None, log)
    )
    if found is not None:
        _tool("list", str(found.path.parent))


def _tool(*words: str) -> None:
    """Run another verb for its output; failures are ignored. Independent."""
    flush_or_discard()
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        subprocess.run(
            [sys.executable, "-m", "hpcckpt", *words], check=False, stdin=subprocess.DEVNULL, timeout=TOOL_S
        )  # fmt: skip


# -- 4. requeue, or end the chain ------------------------------------------------------------------


def carry_out(decision: RequeueDecision, settings: SuperviseSettings, scheduler: Scheduler, log: Log) -> None:
    """Log the decision, and run the scheduler's command. Independent."""
    log(decision.text)
    if not decision.command:
        return
    is_requeue = not settings.chain
    by_hand = "submit the job again by hand to resume"
    if not is_requeue:
        by_hand = f"remove the waiting jobs of the chain {settings.chain} from the queue by hand"
    try:
        _act_with_retries(decision, log, is_twice_fatal=is_requeue and scheduler.makes_new_jobs)
    except RetryError as error:
        log(f"warning: {error}; {by_hand}")


def _act_with_retries(decision: RequeueDecision, log: Log, *, is_twice_fatal: bool) -> None:
    """Run the command until it succeeds or time is up; not again if it may be done and twice would be wrong."""
    ends = time.monotonic() + RETRY_S
    while True:
        try:
            act(decision.command)
        except RetryError as error:
            answer = str(error).removeprefix(" ".join(decision.command))  # in which a name may be any word
            if ALREADY.search(answer):
                return
            is_over = time.monotonic() + RETRY_PAUSE_S > ends
            if is_over or (is_twice_fatal if may_be_done(error) else FINAL.search(answer)):
                raise
            log(f"warning: {error}; tried again in {RETRY_PAUSE_S:.0f} s")
            time.sleep(RETRY_PAUSE_S)
        else:
            return


# -- a dry run -------------------------------------------------------------------------------------


def dry_run(settings: SuperviseSettings, scheduler: Scheduler, log: Log) -> SuperviseResult:
    """Log what `supervise` would do, on any machine, and start nothing. Independent."""
    end = log_job(settings, scheduler, log)
    environ = step_environment_of(settings, scheduler, end)
    for name, value in sorted(environ.items()):
        log(f"would set {name}={value}")
    log(f"would start: {shlex.join(settings.command)}")
    if shutil.which(settings.command[0]) is None:
        log(f"warning: there is no {settings.command[0]} on this machine")
    if settings.lead_s is not None:
        log(f"would ask it to stop {settings.lead_s:.0f} s before the end of the job")
    about = JobCircumstances(settings.max_restarts, settings.chain)
    decisions = {code: decide(StepResult(code, "", 0.0), about, scheduler) for code in (EXIT_CODE, 0, 1)}
    for code, decision in decisions.items():
        command = shlex.join(decision.command)
        shown = "" if not command or command in decision.text else f": {command}"
        log(f"on code {code}: {decision.text}{shown}")
    on_code = {code: decision._asdict() for code, decision in decisions.items()}
    return SuperviseResult(0, {"environment": environ, "command": settings.command, "on_code": on_code})
