"""``hpcckpt supervise``: what a batch job does around its one step.

1. Say what this job is, how long it has, and what it goes on from.
2. Start the step, and hand on to its ranks what asks the job to stop.
3. Show what stands in the run directory.
4. Put the job into the queue again, end the chain, or do nothing: by the exit code of the step.

======  ======================================================================================
code    what it means
======  ======================================================================================
0       done: the chain ends
75      checkpointed, please requeue: done so, unless the job was begun too often, was halted
        by people, or was ended by somebody long before its time
8       failed, if the run stays locked; the same as 75, if the job has to stop before it is free
other   failed: the chain ends
======  ======================================================================================

A job that the scheduler itself has ended, because a node is lost, is left to the scheduler, whatever the code.  One
that it preempts is put into the queue again, unless the scheduler has done so: at once if it is being ended, else when
the step has ended, whatever the code but 0.

A step that finds the run locked (code 8) is started again for a while.  A job whose node is lost keeps its lock: nobody
can know that it is dead before its heartbeat has been silent for long enough, and Slurm may be quicker than that.

What is said, and what is found in the run directory, may fail: the step and what becomes of the job do not hang on it.
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

from hpcckpt.diagnosis.scratch import find_scratch, free_space
from hpcckpt.errors import LockedError, RetryError
from hpcckpt.jobs import surveying
from hpcckpt.jobs.judging import Circumstances, Verdict, judge
from hpcckpt.jobs.schedulers import JobState, Scheduler, act, may_be_done
from hpcckpt.jobs.stepping import Deadline, Ears, Ended, Say, started
from hpcckpt.preemption import EXIT_CODE
from hpcckpt.preemption.clock import duration_text
from hpcckpt.preemption.walltime import JobEnd, seconds_left
from hpcckpt.streams import flush_or_discard
from hpcckpt.units import nbytes_text

BUSY_S = 900.0
"""For how long a step that finds its run locked is started again: a lock expires after 600 s of silence."""
BUSY_AGAIN_S = 30.0
TOOL_S = 60.0
INSIST_S = 300.0
"""For how long a scheduler that refuses is told again what becomes of the job: it may be busy, or begun anew."""
INSIST_AGAIN_S = 15.0
FINAL = re.compile(r"(?i)there is no|disabled|denied|not requeu|not permitted|invalid|illegal|unauthorized|unknown")
"""How a scheduler says no for good."""
ALREADY = re.compile(r"(?i)pending execution")
"""How Slurm says that the job waits in the queue: it was put there before, and the answer was lost."""
_Found = TypeVar("_Found")


@dataclass(frozen=True, slots=True)
class Settings:
    """What a batch script asks for.

    Attributes
    ----------
    command : tuple of str
        The step: a launcher, and what it launches.
    run : pathlib.Path or None
        The run directory.
    max_restarts : int
        How often the job may be put into the queue again, all in all.
    lead_s : float or None
        How long before the end of the job the step is told, if the scheduler does not.
    chain : str
        The name of the chain that this job is one of; "" if it is none.
    is_talking : bool
        Whether what other verbs print for people (``doctor``, ``list``) stands on stdout.
    """

    command: tuple[str, ...]
    run: Path | None = None
    max_restarts: int = 20
    lead_s: float | None = None
    chain: str = ""
    is_talking: bool = True


class Report(NamedTuple):
    """What became of a job: its exit code, and the rest for programs."""

    code: int
    document: Mapping[str, Any]


def supervise(settings: Settings, scheduler: Scheduler, say: Say) -> Report:
    """Run the step of a batch job, and see to what comes then. Independent, and outside of MPI.

    Raises
    ------
    OptionError
        If the step cannot be started, or what the user says of the end of the job cannot be read.
    """
    with Ears() as ears:
        end = introduce(settings, scheduler, say)  # step 1
        halts = _halts(settings, say)
        environ = {**os.environ, **surroundings(settings, scheduler, end)}
        ended = _work(settings, environ, scheduler, ears, _deadline(settings, end), say)  # step 2
        left_s = None if end is None else end.at - (ended.term_at or time.time())
        show(settings, say)  # step 3
        is_halted = _is_halted(halts, _halts(settings, say))
        about = _circumstances(settings, scheduler.state())._replace(is_halted=is_halted, left_s=left_s)
        verdict = judge(ended, about, scheduler)
        carry_out(verdict, settings, scheduler, say)  # step 4
    facts = {"job": scheduler.job_id, "scheduler": scheduler.name, "restarts": scheduler.restarts, "run": settings.run}
    return Report(verdict.code, {**facts, **ended._asdict(), "verdict": verdict._asdict()})


def _circumstances(settings: Settings, state: JobState) -> Circumstances:
    return Circumstances(
        settings.max_restarts, settings.chain,
        is_taken=not state.is_running, is_requeued=state.is_requeued, is_preempted=state.is_preempted,
    )  # fmt: skip


def _requeue_preempted(settings: Settings, scheduler: Scheduler, say: Say) -> None:
    """Requeue a job that is being ended by preemption, before its step ends: its save may take longer than it has."""
    state = scheduler.state()
    if state.is_preempted and not state.is_running:
        killed = Ended(128 + signal.SIGTERM, "SIGTERM", 0.0)
        carry_out(judge(killed, _circumstances(settings, state), scheduler), settings, scheduler, say)


def _deadline(settings: Settings, end: JobEnd | None) -> Deadline:
    return Deadline() if end is None else Deadline(end.at, settings.lead_s)


def _halts(settings: Settings, say: Say) -> surveying.Halts | None:
    run = settings.run
    return None if run is None else _surveyed(lambda: surveying.halts(run), None, say)


def _is_halted(before: surveying.Halts | None, after: surveying.Halts | None) -> bool:
    """Say whether a file HALT was obeyed meanwhile; not, if nobody knows, for then the job goes on. Pure."""
    return before is not None and after is not None and any(before.get(part) != after[part] for part in after)


def _surveyed(look: Callable[[], _Found], otherwise: _Found, say: Say) -> _Found:
    """Return what a look at the run directory or at scratch finds; whatever is wrong there, the job goes on."""
    try:
        return look()
    except Exception as error:  # noqa: BLE001 - anything may stand there, and nothing of the job hangs on it
        say(f"warning: {type(error).__name__}: {error}")
        return otherwise


# -- 1. what this job is ---------------------------------------------------------------------------


def introduce(settings: Settings, scheduler: Scheduler, say: Say) -> JobEnd | None:
    """Say what is known of this job; return when it ends. Independent."""
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
    say(" ".join(words))
    for warning in found.warnings:
        say(f"warning: {warning}")
    run = settings.run
    if run is not None:
        say(f"run={run} latest={_surveyed(lambda: surveying.latest(run), None, say) or 'none'}")
    elif scheduler.requeue() is not None:
        say("warning: without --run nobody knows whether people have halted the run: it is put into the queue again")
    _surveyed(lambda: _say_scratch(say), None, say)
    if settings.is_talking:
        _tool("doctor", "--quick", "--quiet", *([] if settings.run is None else [str(settings.run)]))
    return found.end


def _say_scratch(say: Say) -> None:
    found = find_scratch(os.environ)
    if found.chosen is not None:
        free, _ = free_space(found.chosen)
        say(f"scratch={found.chosen} free={'unknown' if free is None else nbytes_text(free)}")
    wanted = os.environ.get("HPCCKPT_SCRATCH")
    for path, source, reason in found.rejected:
        if found.chosen is None or str(path) == wanted:
            say(f"warning: {path} ({source}) is no scratch: {reason}")


def surroundings(settings: Settings, scheduler: Scheduler, end: JobEnd | None) -> dict[str, str]:
    """Return what the ranks find in their environment; what is not of this very job stays as the user has set it."""
    found = dict(scheduler.step_environment())
    scratch = find_scratch(os.environ).chosen
    if scratch is not None:
        found["HPCCKPT_SCRATCH"] = str(scratch)
    kept = {name: os.environ.get(name) or value for name, value in found.items()}
    kept["HPCCKPT_RESTART_COUNT"] = str(scheduler.restarts)
    if end is not None:
        kept["HPCCKPT_JOB_END"] = f"{end.at:.0f}"
    if settings.run is not None:
        kept["HPCCKPT_RUN"] = str(settings.run)
    return kept


# -- 2. its step -----------------------------------------------------------------------------------


def _work(
    settings: Settings, environ: Mapping[str, str], scheduler: Scheduler, ears: Ears, deadline: Deadline, say: Say
) -> Ended:
    """Run the step; again, as long as it finds its run locked by a job that may be dead. Independent."""
    patience_ends = time.monotonic() + BUSY_S
    while True:
        say(f"step: {shlex.join(settings.command)}")
        with started(settings.command, environ, scheduler, say) as step:
            ended = step.attend(ears, deadline, lambda: _requeue_preempted(settings, scheduler, say))
        by = f" asked_by={ended.asked_by}" if ended.asked_by else ""
        say(f"step ended code={ended.code} seconds={ended.seconds:.0f}{by}")
        if ended.code != LockedError.exit_code or ended.asked_by or time.monotonic() > patience_ends:
            return ended
        say(f"the run is locked by another job, which may be dead: the step is started again in {BUSY_AGAIN_S:.0f} s")
        asked = _asked_meanwhile(ears, deadline)
        if asked:
            say(f"signal={asked}: the step is not started again")
            return ended._replace(asked_by=asked, term_at=time.time() if asked == "SIGTERM" else None)


def _asked_meanwhile(ears: Ears, deadline: Deadline) -> str:
    """Wait until the step is started again; return what asks the job to stop meanwhile. Independent."""
    left_s = deadline.left_s()
    heard = ears.pause(BUSY_AGAIN_S if left_s is None else min(BUSY_AGAIN_S, left_s))
    if heard is not None:
        return heard.name
    return "SIGUSR1" if left_s is not None and left_s <= BUSY_AGAIN_S else ""


# -- 3. what stands in the run directory -----------------------------------------------------------


def show(settings: Settings, say: Say) -> None:
    """List the checkpoints of a run on stdout, as ``hpcckpt list`` does. Independent."""
    run = settings.run
    found = None if run is None or not settings.is_talking else _surveyed(lambda: surveying.latest(run), None, say)
    if found is not None:
        _tool("list", str(found.path.parent))


def _tool(*words: str) -> None:
    """Run another verb, for what it prints; nothing depends on whether it can. Independent."""
    flush_or_discard()
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        subprocess.run(
            [sys.executable, "-m", "hpcckpt", *words], check=False, stdin=subprocess.DEVNULL, timeout=TOOL_S
        )  # fmt: skip


# -- 4. what becomes of the job --------------------------------------------------------------------


def carry_out(verdict: Verdict, settings: Settings, scheduler: Scheduler, say: Say) -> None:
    """Say what becomes of the job, and tell the scheduler. Independent."""
    say(verdict.text)
    if not verdict.command:
        return
    is_requeue = not settings.chain
    by_hand = "submit the job again by hand to go on"
    if not is_requeue:
        by_hand = f"take the jobs of the chain {settings.chain} that wait out of the queue by hand"
    try:
        _insist(verdict, say, is_twice_fatal=is_requeue and scheduler.makes_new_jobs)
    except RetryError as error:
        say(f"warning: {error}; {by_hand}")


def _insist(verdict: Verdict, say: Say, *, is_twice_fatal: bool) -> None:
    """Tell the scheduler, again and again for a while; what may be done already is not said twice if that is fatal."""
    ends = time.monotonic() + INSIST_S
    while True:
        try:
            act(verdict.command)
        except RetryError as error:
            answer = str(error).removeprefix(" ".join(verdict.command))  # in which a name may be any word
            if ALREADY.search(answer):
                return
            is_over = time.monotonic() + INSIST_AGAIN_S > ends
            if is_over or (is_twice_fatal if may_be_done(error) else FINAL.search(answer)):
                raise
            say(f"warning: {error}; tried again in {INSIST_AGAIN_S:.0f} s")
            time.sleep(INSIST_AGAIN_S)
        else:
            return


# -- a rehearsal -----------------------------------------------------------------------------------


def rehearse(settings: Settings, scheduler: Scheduler, say: Say) -> Report:
    """Say what `supervise` would do, on any machine, and start nothing. Independent."""
    end = introduce(settings, scheduler, say)
    environ = surroundings(settings, scheduler, end)
    for name, value in sorted(environ.items()):
        say(f"would set {name}={value}")
    say(f"would start: {shlex.join(settings.command)}")
    if shutil.which(settings.command[0]) is None:
        say(f"warning: there is no {settings.command[0]} on this machine")
    if settings.lead_s is not None:
        say(f"would ask it to stop {settings.lead_s:.0f} s before the end of the job")
    about = Circumstances(settings.max_restarts, settings.chain)
    verdicts = {code: judge(Ended(code, "", 0.0), about, scheduler) for code in (EXIT_CODE, 0, 1)}
    for code, verdict in verdicts.items():
        command = shlex.join(verdict.command)
        told = "" if not command or command in verdict.text else f": {command}"
        say(f"on code {code}: {verdict.text}{told}")
    on_code = {code: verdict._asdict() for code, verdict in verdicts.items()}
    return Report(0, {"environment": environ, "command": settings.command, "on_code": on_code})
