"""Cobalt, the scheduler that Theta had, as a batch job sees it.

Cobalt never runs a job again.  A job that is to resume submits itself again, by the line that ``qsub`` wrote into
``JOBID.cobaltlog`` when this one was submitted.  The new job does not depend on this one: Cobalt never starts jobs
that depend on one that ends with another code than 0, and this one will end with 75.  A dependency is not needed
either: the ranks have ended before the new job is submitted.
"""

from __future__ import annotations

import getopt
import os
import re
import shlex

from hpcckpt.jobs.pbs import RESTARTS, SCRIPT
from hpcckpt.jobs.schedulers import REQUEST, Command, Requeue, Scheduler

LOG = "HPCCKPT_COBALTLOG"
"""Where the log of the job is, if ``--debuglog`` or ``-O`` put it elsewhere than into the working directory."""
ARGUMENTS = "HPCCKPT_ARGUMENTS"
"""The variable in which the batch script exports its arguments, quoted for a shell: the log does not quote them."""
_MAX_LOG = 1 << 20
_SHORT_OPTIONS = "dvhIn:A:q:M:t:u:O:e:o:i:"
_LONG_OPTIONS = (
    "debug", "verbose", "held", "preemptable", "run_project", "disable_preboot", "interactive", "nodecount=",
    "proccount=", "project=", "cwd=", "queue=", "notify=", "env=", "time=", "umask=", "outputprefix=", "error=",
    "output=", "inputfile=", "debuglog=", "dependencies=", "attrs=", "user_list=", "run_users=", "jobname=", "mode=",
)  # fmt: skip
"""Of qsub of Cobalt 1: https://github.com/ido/cobalt/blob/master/src/clients/POSIX/qsub.py"""


class Cobalt(Scheduler):
    """A job of Cobalt: put into the queue again it is a new job."""

    name = "cobalt"
    makes_new_jobs = True

    @property
    def job_id(self) -> str:
        """The number of the job."""
        return self.environ["COBALT_JOBID"]

    @property
    def restarts(self) -> int:
        """How many jobs there were before this one."""
        count = self.environ.get(RESTARTS, "")
        return int(count) if count.isdecimal() else 0

    @property
    def request(self) -> str:
        """The first of these jobs."""
        return self.environ.get(REQUEST) or self.job_id

    def requeue(self) -> Requeue | None:
        """Return the command that submits this job again; None if neither its log nor its script is found."""
        submitted = self._submitted()
        if submitted is not None:
            return Requeue(("qsub", *self._counted(*submitted)), f"a new job resumes after {self.job_id}")
        script = self.environ.get(SCRIPT, "")
        if not os.path.isfile(script):
            return None
        note = f"{self._log()} does not show how {self.job_id} was submitted: the new job has the options in its script"
        return Requeue(("qsub", *self._counted([], [script, *(self._arguments() or ())])), note)

    def end_chain(self, chain: str) -> Command:  # noqa: ARG002 - Cobalt knows no names to select jobs by
        """Return nothing: what depends on a job that failed is held back by Cobalt itself."""
        return ()

    def _log(self) -> str:
        return self.environ.get(LOG) or f"{self.job_id}.cobaltlog"

    def _submitted(self) -> tuple[list[tuple[str, str]], list[str]] | None:
        """Return the options by which this job was submitted, and its script with the script's arguments."""
        try:
            with open(self._log(), encoding="utf-8", errors="replace") as file:
                text = file.read(_MAX_LOG)
        except OSError:
            return None
        line = re.search(r"^qsub (\S.*)$", text, re.MULTILINE)
        try:
            return self._read_line(line[1]) if line else None
        except getopt.GetoptError:
            return None

    def _read_line(self, line: str) -> tuple[list[tuple[str, str]], list[str]] | None:
        """Return the options, and the script with its arguments; None if the line does not end with these."""
        arguments = self._arguments()
        if arguments is None:
            return getopt.getopt(line.split(), _SHORT_OPTIONS, _LONG_OPTIONS)
        end = "".join(f" {word}" for word in arguments)
        options, rest = getopt.getopt(line.removesuffix(end).split(), _SHORT_OPTIONS, _LONG_OPTIONS)
        script = " ".join(rest)
        is_whole = line.endswith(end) and (len(rest) == 1 or os.path.isfile(script))
        return (options, [script, *arguments]) if is_whole else None

    def _arguments(self) -> list[str] | None:
        """Return the arguments of the batch script; None if it does not export them."""
        given = self.environ.get(ARGUMENTS)
        return None if given is None else shlex.split(given)

    def _counted(self, options: list[tuple[str, str]], script: list[str]) -> list[str]:
        """Return the words for qsub with the variables of this job, and with the number of restarts, counted up."""
        kept = [word for name, value in options if name not in {"--env", "--dependencies"} for word in (name, value)]
        variables = [value for name, value in options if name == "--env"]
        named = {pair.partition("=")[0]: pair for value in variables for pair in re.split(r":(?=\w+=)", value)}
        named |= {REQUEST: f"{REQUEST}={self.request}", RESTARTS: f"{RESTARTS}={self.restarts + 1}"}
        return [*filter(None, kept), "--env", ":".join(named.values()), *script]
