"""What becomes of a batch job whose step has ended: decided by its exit code, and by what is known besides. Pure."""

from __future__ import annotations

import shlex
from typing import NamedTuple

from hpcckpt.errors import LockedError
from hpcckpt.jobs.schedulers import Command, Scheduler
from hpcckpt.jobs.stepping import ASKING, Ended
from hpcckpt.preemption import EXIT_CODE
from hpcckpt.preemption.clock import duration_text

ENDING_S = 60.0
"""A TERM that comes no longer than this before the end of the job is the end of the job."""

_REQUEUED = "the scheduler has put it into the queue again"


class Verdict(NamedTuple):
    """What is done now.

    Attributes
    ----------
    text : str
        Why, and what to do next, for people.
    code : int
        The exit code of the job.
    command : tuple of str
        What the scheduler is told; ``()`` for nothing.
    """

    text: str
    code: int
    command: Command = ()


class Circumstances(NamedTuple):
    """What counts besides the exit code.

    Attributes
    ----------
    max_restarts : int
        How often the job may be put into the queue again, all in all.
    chain : str
        The name of the chain that it is one job of; "" if it is none.
    is_halted : bool
        A file HALT has stopped the run.
    is_taken : bool
        The scheduler has ended the job already: it was cancelled or preempted, or a node is lost.
    is_requeued : bool
        The job is in the queue again already, without us.
    is_preempted : bool
        The scheduler ends the job to make room for another one.
    left_s : float or None
        What was left of the job at the first TERM, or when the step had ended; ``None`` if nobody knows.
    """

    max_restarts: int
    chain: str = ""
    is_halted: bool = False
    is_taken: bool = False
    is_requeued: bool = False
    is_preempted: bool = False
    left_s: float | None = None


def judge(ended: Ended, about: Circumstances, scheduler: Scheduler) -> Verdict:
    """Return what becomes of the job. Pure."""
    if ended.code == EXIT_CODE:
        return _goes_on("preempted, checkpointed" if about.is_preempted else "checkpointed", ended, about, scheduler)
    if ended.code == LockedError.exit_code and ended.asked_by:
        return _goes_on("not begun, for its run is locked", ended, about, scheduler)
    if about.is_preempted and (ended.code or about.is_taken):  # ranks that do not listen yet are killed by its TERM
        what = "preempted, and resumes from its newest checkpoint"
        return _goes_on(what, ended._replace(code=ended.code or 1), about, scheduler)
    if about.is_taken:  # its code means nothing: srun has 0 where a node is lost
        if about.is_requeued:
            return Verdict(f"ended from outside, with code {ended.code}: {_REQUEUED}", ended.code or 1)
        why = "cancelled, or a node is lost; its newest checkpoint is kept"
        return Verdict(f"ended from outside, with code {ended.code}: {why}", ended.code or 1)
    chain_ends = scheduler.end_chain(about.chain) if about.chain else ()
    if ended.code == 0:
        return Verdict("done", 0, chain_ends)
    return Verdict(f"failed: {_failure(ended)}, so it is not started again", ended.code, chain_ends)


def _failure(ended: Ended) -> str:
    if ended.asked_by and ended.code - 128 in ASKING:
        return f"code {ended.code}, it was killed by what asked it to stop, which it must catch (docs/preemption.md)"
    return f"code {ended.code} is neither 0 nor {EXIT_CODE}"


def _goes_on(what: str, ended: Ended, about: Circumstances, scheduler: Scheduler) -> Verdict:
    if about.is_halted:
        chain_ends = scheduler.end_chain(about.chain) if about.chain else ()
        return Verdict("halted: a file HALT has stopped it; submit it again to go on", ended.code, chain_ends)
    if about.chain:
        return Verdict(f"{what}: the next job of the chain {about.chain} goes on", ended.code)
    if about.is_requeued:
        return Verdict(f"{what}: {_REQUEUED}", ended.code)
    if _is_ended_early(ended, about):
        left = "" if about.left_s is None else f", {duration_text(about.left_s)} before its end"
        return Verdict(f"{what}: ended by somebody{left}; submit it again to go on", ended.code)
    requeue = scheduler.requeue()
    if requeue is None:
        return Verdict(
            f"{what}: it is not started again automatically here; to resume, run the same command", ended.code
        )
    if scheduler.restarts >= about.max_restarts:
        text = (
            f"{what}, but it was started again {scheduler.restarts} times already (--max-restarts "
            f"{about.max_restarts}): see whether it gets on, then submit it again"
        )
        return Verdict(text, ended.code)
    note = f" ({requeue.note})" if requeue.note else ""
    turn = f"restart {scheduler.restarts + 1} of at most {about.max_restarts}"
    return Verdict(f"{what}: {turn}: {shlex.join(requeue.command)}{note}", ended.code, requeue.command)


def _is_ended_early(ended: Ended, about: Circumstances) -> bool:
    """Return True if a person has ended the job, not its time: then it is not for us to requeue it. Pure."""
    if about.is_preempted:
        return False
    if about.left_s is None:
        return about.is_taken
    is_ended = about.is_taken or ended.asked_by == "SIGTERM" or ended.term_at is not None
    return is_ended and about.left_s > ENDING_S
