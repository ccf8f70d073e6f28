"""Whether a batch job is requeued when its step has ended: by its exit code and other facts. Pure."""

from __future__ import annotations

import shlex
from typing import NamedTuple

from hpcckpt.core.durations import duration_text
from hpcckpt.errors import LockedError
from hpcckpt.jobs.child_process import ASKING, StepResult
from hpcckpt.jobs.schedulers import Command, Scheduler
from hpcckpt.preemption import EXIT_CODE

ENDING_S = 60.0
"""A TERM that comes at most this many seconds before the end of the job announces that end."""

_REQUEUED = "the scheduler has put it into the queue again"


class RequeueDecision(NamedTuple):
    """What is done with the job.

    Attributes
    ----------
    text : str
        The reason and the next action, for people.
    code : int
        The exit code of the job.
    command : tuple of str
        The scheduler's command to run; ``()`` for none.
    """

    text: str
    code: int
    command: Command = ()


class JobCircumstances(NamedTuple):
    """The facts that count in addition to the exit code.

    Attributes
    ----------
    max_restarts : int
        How often the job may be put into the queue again in total.
    chain : str
        The name of the chain that the job belongs to; "" if there is none.
    is_halted : bool
        A file HALT has stopped the run.
    is_taken : bool
        The scheduler has ended the job already: it was cancelled or preempted, or a node is lost.
    is_requeued : bool
        The job is in the queue again already, by the scheduler.
    is_preempted : bool
        The scheduler ends the job to make room for another one.
    left_s : float or None
        Seconds left of the job at the first TERM, or when the step had ended; None if unknown.
    """

    max_restarts: int
    chain: str = ""
    is_halted: bool = False
    is_taken: bool = False
    is_requeued: bool = False
    is_preempted: bool = False
    left_s: float | None = None


def decide(ended: StepResult, about: JobCircumstances, scheduler: Scheduler) -> RequeueDecision:
    """Return whether the job is requeued, and why. Pure."""
    if ended.code == EXIT_CODE:
        return _continue("preempted, checkpointed" if about.is_preempted else "checkpointed", ended, about, scheduler)
    if ended.code == LockedError.exit_code and ended.asked_by:
        return _continue("not begun, for its run is locked", ended, about, scheduler)
    if about.is_preempted and (ended.code or about.is_taken):  # ranks that do not catch TERM yet are killed by it
        what = "preempted, and resumes from its newest checkpoint"
        return _continue(what, ended._replace(code=ended.code or 1), about, scheduler)
    if about.is_taken:  # its code means nothing: srun has 0 where a node is lost
        if about.is_requeued:
            return RequeueDecision(f"ended from outside, with code {ended.code}: {_REQUEUED}", ended.code or 1)
        why = "cancelled, or a node is lost; its newest checkpoint is kept"
        return RequeueDecision(f"ended from outside, with code {ended.code}: {why}", ended.code or 1)
    chain_ends = scheduler.end_chain(about.chain) if about.chain else ()
    if ended.code == 0:
        return RequeueDecision("done", 0, chain_ends)
    return RequeueDecision(f"failed: {_failure(ended)}, so it is not started again", ended.code, chain_ends)


def _failure(ended: StepResult) -> str:
    if ended.asked_by and ended.code - 128 in ASKING:
        return f"code {ended.code}, it was killed by what asked it to stop, which it must catch (docs/preemption.md)"
    return f"code {ended.code} is neither 0 nor {EXIT_CODE}"


def _continue(what: str, ended: StepResult, about: JobCircumstances, scheduler: Scheduler) -> RequeueDecision:
    if about.is_halted:
        chain_ends = scheduler.end_chain(about.chain) if about.chain else ()
        return RequeueDecision("halted: a file HALT has stopped it; submit it again to resume", ended.code, chain_ends)
    if about.chain:
        return RequeueDecision(f"{what}: the next job of the chain {about.chain} resumes", ended.code)
    if about.is_requeued:
        return RequeueDecision(f"{what}: {_REQUEUED}", ended.code)
    if _is_ended_early(ended, about):
        left = "" if about.left_s is None else f", {duration_text(about.left_s)} before its end"
        return RequeueDecision(f"{what}: ended by a person{left}; submit it again to resume", ended.code)
    requeue = scheduler.requeue()
    if requeue is None:
        return RequeueDecision(
            f"{what}: it is not started again automatically here; to resume, run the same command", ended.code
        )
    if scheduler.restarts >= about.max_restarts:
        text = (
            f"{what}, but it was started again {scheduler.restarts} times already (--max-restarts "
            f"{about.max_restarts}): check that it makes progress, then submit it again"
        )
        return RequeueDecision(text, ended.code)
    note = f" ({requeue.note})" if requeue.note else ""
    turn = f"restart {scheduler.restarts + 1} of at most {about.max_restarts}"
    return RequeueDecision(f"{what}: {turn}: {shlex.join(requeue.command)}{note}", ended.code, requeue.command)


def _is_ended_early(ended: StepResult, about: JobCircumstances) -> bool:
    """Return True if a person has ended the job, not its time: then it is not for us to requeue it. Pure."""
    if about.is_preempted:
        return False
    if about.left_s is None:
        return about.is_taken
    is_ended = about.is_taken or ended.asked_by == "SIGTERM" or ended.term_at is not None
    return is_ended and about.left_s > ENDING_S
