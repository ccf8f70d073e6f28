"""What a batch job needs of its scheduler, and which scheduler this is.

Each scheduler is one subclass of `Scheduler` in a separate file.  It reads the environment that it was given, and
returns the commands that put a job into the queue or remove it, so that a dry run can show them; `act` runs them.
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
from hpcckpt.preemption.walltime import JobEndResult, find_job_end

Environment = Mapping[str, str]
Command = tuple[str, ...]
REQUEST = "HPCCKPT_REQUEST"
"""The variable with the id of what the user submitted: ``hpcckpt train`` goes back to an older step once for each."""
ATTEMPT = "HPCCKPT_ATTEMPT"
"""The variable with the id of this start of the job: the same command given twice in one start goes back twice."""
ANSWER_S = 60.0
"""How long a scheduler may take for an answer: busy ones need half a minute."""


class Requeue(NamedTuple):
    """How a job is put into the queue again.

    Attributes
    ----------
    command : tuple of str
        The command; ``()`` if the exit code is enough.
    note : str
        What users should know about it, for example that the job gets another id.
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
        The scheduler or a person has put it into the queue again since this script began.
    is_preempted : bool
        The scheduler ends it, or will end it, to make room for a job of higher priority.
    """

    is_running: bool = True
    is_requeued: bool = False
    is_preempted: bool = False


class Scheduler(ABC):
    """A scheduler, as the process of the batch script sees it.

    The methods are called in this order, all of them Independent, and outside of MPI:

    1) `job_id`, `restarts`, `job_end`: logged at the start; `step_environment` goes to the ranks;
    2) `signal_step`: a signal came, and is forwarded to the ranks;
    3) `state`: the step has ended, or a TERM came: has the scheduler ended the job, and why?
    4) `requeue`: the step has ended with code 75, and the job must begin again;
    5) `end_chain`: the step has ended with another code, and the jobs that wait for it in the queue are not needed.

    Parameters
    ----------
    environ : mapping
        The environment of the batch script.
    """

    name: ClassVar[str]
    """Its name in options and messages: ``slurm``, ``pbs``, ``cobalt``, ``none``."""
    makes_new_jobs: ClassVar[bool] = False
    """Whether a requeued job is a new one: the command must not be run twice."""

    def __init__(self, environ: Environment) -> None:
        self.environ = environ

    @property
    @abstractmethod
    def job_id(self) -> str:
        """The id that users know: ``42``, ``42_7`` for one of an array."""

    @property
    @abstractmethod
    def restarts(self) -> int:
        """How many times this job has started before."""

    @property
    def request(self) -> str:
        """The id of what the user submitted; a requeue keeps it."""
        return self.job_id

    def job_end(self) -> JobEndResult:
        """Return when this job ends. Independent."""
        return find_job_end(environ=self.environ)

    def step_environment(self) -> dict[str, str]:
        """Return additional variables for the environment of the ranks. Independent."""
        return {}

    def signal_step(self, launcher: str, signal_name: str, step: str = "") -> bool:  # noqa: ARG002 - for those who can
        """Send a signal to the ranks and return True; False if the launcher must forward it. Independent.

        Parameters
        ----------
        launcher : str
            The name of the program that started the ranks: ``srun``, ``mpirun``, ``aprun``, ``python``.
        signal_name : str
            ``USR1``, ``USR2`` or ``TERM``.
        step : str
            The scheduler's number of the step, if the ranks show it.

        Raises
        ------
        RetryError
            If it could not be sent now; it is retried.
        """
        return False

    def state(self) -> JobState:
        """Return what the scheduler reports of this job. Independent.

        If the scheduler cannot be asked, or does not answer, the job counts as running: this process is part of it.
        """
        return JobState()

    @abstractmethod
    def requeue(self) -> Requeue | None:
        """Return how this job is put into the queue again; None if it cannot be. Independent."""

    def end_chain(self, chain: str) -> Command:  # noqa: ARG002 - for schedulers with such a command
        """Return the command that removes the waiting jobs of a chain; ``()`` if there is none. Independent.

        Parameters
        ----------
        chain : str
            The name that all its jobs have, and no others (``HPCCKPT_CHAIN``).
        """
        return ()


class NoScheduler(Scheduler):
    """A laptop, or an allocation that is used by hand: no job is started again automatically."""

    name = "none"

    @property
    def job_id(self) -> str:
        """There is none."""
        return "-"

    @property
    def restarts(self) -> int:
        """Restarts are not counted."""
        return 0

    @property
    def request(self) -> str:
        """There is none: each start by hand is a new request."""
        return ""

    def requeue(self) -> Requeue | None:
        """Return None: the job cannot be requeued. Independent."""
        return None


_KNOWN = {  # the variable that marks a job of the scheduler, and the class
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

    The command survives a TERM, because a scheduler that requeues a job sends one to all its processes, including this
    command.

    Raises
    ------
    RetryError
        If the command fails, does not exist, or does not answer; the message has its output.
    """
    text = " ".join(command)
    if shutil.which(command[0]) is None:
        raise RetryError(f"{text}: there is no {command[0]} on the PATH of this node")
    try:
        with _term_held_back():
            done = subprocess.run(
                command, capture_output=True, text=True, errors="replace", timeout=timeout_s, check=False,
                stdin=subprocess.DEVNULL, env=_without_settings(os.environ),
            )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RetryError(f"{text}: {error}") from error
    if done.returncode != 0:
        raise RetryError(f"{text}: exit code {done.returncode}: {(done.stderr or done.stdout).strip()[:300]}")
    return done.stdout


def _without_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without the options that a user gives to Slurm's commands by variables. Pure."""
    return {name: value for name, value in environ.items() if not name.startswith(("SQUEUE_", "SCANCEL_"))}


@contextlib.contextmanager
def _term_held_back() -> Iterator[None]:
    """Delay a TERM until the block is left; processes started in it never receive one. Independent."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def may_be_done(error: RetryError) -> bool:
    """Return True if a failed command may have been executed after all. Pure.

    This is so if its answer did not come in time.
    """
    return isinstance(error.__cause__, subprocess.TimeoutExpired)
