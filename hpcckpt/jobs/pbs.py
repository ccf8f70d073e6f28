"""PBS Professional, as a batch job sees it.

In PBS only operators can run a job again (qrerun(1B)), and no exit code does it.  So a job that is to resume submits
itself again as it was submitted: with the options that the server has of it, and the script that it is running.  The
new job has another id, waits for the end of this one, and ``HPCCKPT_RESTARTS`` counts the jobs before it.

A job that PBS itself runs again, because a node failed or another job was given its place (``-r y``), is the same job.
"""

from __future__ import annotations

import json
import os
import shlex
from functools import cached_property
from typing import Any

from hpcckpt.core.durations import ctime_s, duration_s
from hpcckpt.errors import OptionError, RetryError
from hpcckpt.jobs.schedulers import ATTEMPT, REQUEST, Command, Requeue, Scheduler, act
from hpcckpt.preemption.walltime import JobEnd, JobEndResult

RESTARTS = "HPCCKPT_RESTARTS"
SCRIPT = "HPCCKPT_SCRIPT"
"""The variable in which the batch script exports its path."""
ASKING_S = 20.0
_OF_THIS_JOB = frozenset(
    {ATTEMPT, REQUEST, RESTARTS, SCRIPT, "HPCCKPT_DRY_RUN", "HPCCKPT_JOB_END", "HPCCKPT_JOB_START"}
)
_RESOURCES = ("select", "place", "walltime", "filesystems")


class Pbs(Scheduler):
    """A job of PBS: put into the queue again it is a new job that waits for the end of this one."""

    name = "pbs"
    makes_new_jobs = True

    @property
    def job_id(self) -> str:
        """The job, as ``qstat`` takes it: ``1234.polaris-pbs-01``, ``1234[7].polaris-pbs-01``."""
        return self.environ["PBS_JOBID"]

    @property
    def restarts(self) -> int:
        """How many jobs there were before this one, and how often PBS has run this one again by itself."""
        count = self.environ.get(RESTARTS, "")
        before = int(count) if count.isdecimal() else 0
        runs = self._job.get("run_count")
        return before + (max(0, runs - 1) if isinstance(runs, int) else 0)

    @property
    def request(self) -> str:
        """The first of these jobs."""
        return self.environ.get(REQUEST) or self.job_id

    def job_end(self) -> JobEndResult:
        """Return when this job ends by the server: the walltime in the script may have been changed. Independent."""
        limit, began = self._job.get("Resource_List", {}).get("walltime"), self._job.get("stime")
        if self.environ.get("HPCCKPT_JOB_END") or not limit or not began:
            return super().job_end()
        try:
            return JobEndResult(JobEnd(ctime_s(began) + duration_s(limit), "qstat"))
        except (OptionError, TypeError):
            return super().job_end()

    def requeue(self) -> Requeue | None:
        """Return the command that submits this job again; None for an array or if its script is unknown."""
        script = self.environ.get(SCRIPT, "")
        if "[" in self.job_id or not os.path.isfile(script):
            return None
        note = f"a new job resumes after {self.job_id}"
        if not self._job:  # what failed at the start may be answered hours later
            self._job = self._ask()
        if not self._job:
            note += "; qstat shows nothing of this one, so only the options in its script are the same"
        return Requeue(("qsub", *self._options(), script), note)

    def end_chain(self, chain: str) -> Command:
        """Return what takes the jobs of a chain that wait for this one out of the queue."""
        name = shlex.quote(chain)
        return ("sh", "-c", f'jobs=$(qselect -N {name} -s HQ) || exit; [ -z "$jobs" ] || qdel $jobs')

    # -- what the server remembers -----------------------------------------------------------------

    @cached_property
    def _job(self) -> dict[str, Any]:
        """The job as the server describes it; nothing, where that cannot be had."""
        return self._ask()

    def _ask(self) -> dict[str, Any]:
        try:
            jobs = json.loads(act(("qstat", "-f", "-F", "json", self.job_id), ASKING_S))["Jobs"]
            return dict(jobs.get(self.job_id) or next(iter(jobs.values())))
        except ValueError:  # some servers write no JSON if a variable has a value that is odd enough
            return self._ask_plainly()
        except (RetryError, KeyError, TypeError, AttributeError, StopIteration):
            return {}

    def _ask_plainly(self) -> dict[str, Any]:
        try:
            return read_plain(act(("qstat", "-f", self.job_id), ASKING_S))
        except RetryError:
            return {}

    def _options(self) -> list[str]:
        wanted = {
            "-N": self.environ.get("PBS_JOBNAME") or self._job.get("Job_Name"),
            "-A": self._job.get("Account_Name"),
            "-q": self.environ.get("PBS_O_QUEUE"),  # PBS_QUEUE is where a routing queue has sent it
        }
        options = [word for name, value in wanted.items() if value for word in (name, str(value))]
        asked = self._job.get("Resource_List", {})
        for name in _RESOURCES:
            options += ["-l", f"{name}={asked[name]}"] if name in asked else []
        return [*options, "-W", f"depend=afterany:{self.job_id}", "-v", ",".join(self._variables())]

    def _variables(self) -> list[str]:
        """Return the variables to pass on; a name without a value means the value here, so none needs quotes."""
        remembered = set(self._job.get("Variable_List", {}))
        given = {name for name in remembered if name in self.environ and not name.startswith("PBS_O_")}
        ours = {name for name in self.environ if name.startswith("HPCCKPT_")}
        counted = [f"{REQUEST}={self.request}", f"{RESTARTS}={self.restarts + 1}"]
        return [*sorted((given | ours) - _OF_THIS_JOB), *counted]


def read_plain(text: str) -> dict[str, Any]:
    """Return what ``qstat -f`` prints of one job, as its JSON would have it; of variables the names alone. Pure."""
    job: dict[str, Any] = {}
    resources: dict[str, str] = {}
    for line in text.replace("\n\t", "").splitlines():
        name, equals, value = line.strip().partition(" = ")
        if not equals:
            continue
        if name.startswith("Resource_List."):
            resources[name.removeprefix("Resource_List.")] = value
        elif name == "Variable_List":
            job[name] = {each.partition("=")[0]: "" for each in value.split(",")}
        else:
            job[name] = int(value) if name == "run_count" and value.isdecimal() else value
    return {**job, "Resource_List": resources} if job else {}
