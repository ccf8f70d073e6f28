"""What a batch job needs of its scheduler, and which scheduler this is.

A scheduler is one subclass of `Scheduler` in a file of its own.  It reads the environment that it was given, and names
the commands that put a job into the queue or take one out of it, so that a dry run can show them; `act` runs them.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
import signal
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, NamedTuple

from hpcckpt.errors import RetryError
from hpcckpt.preemption.walltime import Found, find_job_end

Environment = Mapping[str, str]
Command = tuple[str, ...]
ANSWER_S = 60.0
"""How long a scheduler may take for an answer: busy ones need half a minute."""


class Requeue(NamedTuple):
    """How a job is put into the queue again.

    Attributes
    ----------
    command : tuple of str
        What does it; ``()`` if nothing need be done beyond the exit code.
    note : str
        What people should know of it: that it is a job with another id, say.
    """

    command: Command
    note: str = ""


class JobState(NamedTuple):
    """What a scheduler reports of a job.

    Attributes
    ----------
    is_running : bool
        It is neither cancelled, nor requeued, nor lost.
    is_requeued : bool
        It is in the queue again since this script began, by the scheduler or by a person.
    is_preempted : bool
        The scheduler ends it, or will, to make room for a job of higher priority.
    """

    is_running: bool = True
    is_requeued: bool = False
    is_preempted: bool = False


class Scheduler(ABC):
    """A scheduler, as the one process sees it that a batch script has become.

    Who is asked what, in this order, all of it Independent, and outside of MPI:

    1) `job_id`, `restarts`, `job_end`: what is said at the start; `step_environment` goes to the ranks;
    2) `signal_step`: a signal came, and is handed on to the ranks;
    3) `state`: the step has ended, or a TERM came; has the scheduler ended the job, and why?
    4) `requeue`: it has ended with 75, and the job is to begin again;
    5) `end_chain`: it has ended otherwise, and what waits in the queue for it is not needed.

    Parameters
    ----------
    environ : mapping
        The environment of the batch script.
    """

    name: ClassVar[str]
    """How options and messages call it: ``slurm``, ``pbs``, ``cobalt``, ``none``."""
    makes_new_jobs: ClassVar[bool] = False
    """Whether a job that is put into the queue again is a new one: said twice, there are two."""

    def __init__(self, environ: Environment) -> None:
        self.environ = environ

    @property
    @abstractmethod
    def job_id(self) -> str:
        """What people call this job: ``42``, ``42_7`` for one of an array."""

    @property
    @abstractmethod
    def restarts(self) -> int:
        """How often this job was begun before."""

    def job_end(self) -> Found:
        """Find out when this job ends. Independent."""
        return find_job_end(environ=self.environ)

    def step_environment(self) -> dict[str, str]:
        """Return what the ranks should find in their environment besides. Independent."""
        return {}

    def signal_step(self, launcher: str, signal_name: str) -> bool:  # noqa: ARG002 - for those who can
        """Send a signal to the ranks, and return ``True``; ``False``: signal the launcher, it hands it on. Independent.

        Parameters
        ----------
        launcher : str
            The name of the program that started the ranks: ``srun``, ``mpirun``, ``aprun``, ``python``.
        signal_name : str
            ``USR1``, ``USR2`` or ``TERM``.

        Raises
        ------
        RetryError
            If it could not be sent now; it is tried again.
        """
        return False

    def state(self) -> JobState:
        """Return what the scheduler reports of this job. Independent.

        Where it cannot be asked, or does not answer, the job runs: this very process is part of it.
        """
        return JobState()

    @abstractmethod
    def requeue(self) -> Requeue | None:
        """Return how this job is put into the queue again; ``None`` if it cannot be. Independent."""

    def end_chain(self, chain: str) -> Command:  # noqa: ARG002 - for those who have one
        """Return what takes the waiting jobs of a chain out of the queue; ``()`` if nothing does. Independent.

        Parameters
        ----------
        chain : str
            The name that all its jobs have, and no others (``HPCCKPT_CHAIN``).
        """
        return ()


class NoScheduler(Scheduler):
    """A laptop, or an allocation that is used by hand: nobody starts anything again."""

    name = "none"

    @property
    def job_id(self) -> str:
        """There is none."""
        return "-"

    @property
    def restarts(self) -> int:
        """Nobody counts."""
        return 0

    def requeue(self) -> Requeue | None:
        """Say that nobody starts it again. Independent."""
        return None


_KNOWN = {  # the variable by which a job of it is known, and who speaks for it
    "SLURM_JOB_ID": "hpcckpt.jobs.slurm:Slurm",
    "PBS_JOBID": "hpcckpt.jobs.pbs:Pbs",
    "COBALT_JOBID": "hpcckpt.jobs.cobalt:Cobalt",
}


def detect(environ: Environment = os.environ) -> Scheduler:
    """Return the scheduler whose job this is. Independent."""
    for variable, target in _KNOWN.items():
        if environ.get(variable):
            module, _, name = target.partition(":")
            kind: type[Scheduler] = getattr(importlib.import_module(module), name)
            return kind(environ)
    return NoScheduler(environ)


def act(command: Sequence[str], timeout_s: float = ANSWER_S) -> str:
    """Run a command of the scheduler, and return what it prints. Independent.

    It outlives a TERM: who puts a job into the queue again has all of it sent one, the very command that did so too.

    Raises
    ------
    RetryError
        With what the command says, if it fails, is not there, or does not answer.
    """
    text = " ".join(command)
    if shutil.which(command[0]) is None:
        raise RetryError(f"{text}: there is no {command[0]} on the PATH of this node")
    try:
        with _term_held_back():
            done = subprocess.run(
                command, capture_output=True, text=True, errors="replace", timeout=timeout_s, check=False,
                stdin=subprocess.DEVNULL,
            )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RetryError(f"{text}: {error}") from error
    if done.returncode != 0:
        raise RetryError(f"{text}: exit code {done.returncode}: {(done.stderr or done.stdout).strip()[:300]}")
    return done.stdout


@contextlib.contextmanager
def _term_held_back() -> Iterator[None]:
    """Have a TERM wait until the block is left; those who are started in it never get one. Independent."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def may_be_done(error: RetryError) -> bool:
    """Say whether a command that `act` failed with may have been obeyed: nobody answered in time. Pure."""
    return isinstance(error.__cause__, subprocess.TimeoutExpired)
