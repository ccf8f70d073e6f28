"""Cobalt, the scheduler that Theta had, as a batch job sees it.

Cobalt never runs a job again.  A job that is to go on submits itself anew, by the line that ``qsub`` wrote into
``JOBID.cobaltlog`` when this one was submitted.  The new job does not depend on this one: Cobalt holds back, for good,
what depends on a job that ends with another code than 0, and this one will end with 75.  It needs no such tie either:
the ranks have ended before it is submitted.
"""

from __future__ import annotations

import os
import re

from hpcckpt.jobs.directives import DIALECTS, read_words
from hpcckpt.jobs.pbs import RESTARTS, SCRIPT
from hpcckpt.jobs.schedulers import Command, Requeue, Scheduler

LOG = "HPCCKPT_COBALTLOG"
"""Where the log of the job is, if ``--debuglog`` or ``-O`` put it elsewhere than into the working directory."""
_MAX_LOG = 1 << 20


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

    def requeue(self) -> Requeue | None:
        """Return what submits this job anew; ``None`` if neither its log nor its script can be found."""
        words = self._submitted()
        if words is not None:
            return Requeue(("qsub", *self._counted(words)), f"a new job goes on behind {self.job_id}")
        script = self.environ.get(SCRIPT, "")
        if not os.path.isfile(script):
            return None
        note = f"{self._log()} does not tell how {self.job_id} was submitted: the new job has the options in its script"
        return Requeue(("qsub", *self._counted([script])), note)

    def end_chain(self, chain: str) -> Command:  # noqa: ARG002 - Cobalt knows no names to select jobs by
        """Return nothing: what depends on a job that failed is held back by Cobalt itself."""
        return ()

    def _log(self) -> str:
        return self.environ.get(LOG) or f"{self.job_id}.cobaltlog"

    def _submitted(self) -> list[str] | None:
        """Return the words behind ``qsub`` by which this job was submitted."""
        try:
            with open(self._log(), encoding="utf-8", errors="replace") as file:
                text = file.read(_MAX_LOG)
        except OSError:
            return None
        line = re.search(r"^qsub (\S.*)$", text, re.MULTILINE)
        return line[1].split() if line else None

    def _counted(self, words: list[str]) -> list[str]:
        """Return the words with the variables of this job, and with the number of restarts, counted up."""
        dialect = DIALECTS["cobalt"]
        given, rest, _ = read_words(words, dialect, "qsub")
        kept = [word for one in given if one.name not in {"--env", "--dependencies"} for word in one[1:] if word]
        variables = [one.value for one in given if one.name == "--env"]
        named = {pair.partition("=")[0]: pair for value in variables for pair in re.split(r":(?=\w+=)", value)}
        named[RESTARTS] = f"{RESTARTS}={self.restarts + 1}"
        return [*kept, "--env", ":".join(named.values()), *rest]
