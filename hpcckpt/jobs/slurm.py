"""Slurm, as a batch job sees it."""

from __future__ import annotations

from hpcckpt.errors import RetryError
from hpcckpt.jobs.schedulers import Command, Requeue, Scheduler, act

SIGNAL_S = 10.0
"""How long Slurm may take for an answer while a warning waits: it is tried again, and in the end srun is signalled."""


class Slurm(Scheduler):
    """A job of Slurm: put into the queue again it is the same job, with the same id, from the start of its script."""

    name = "slurm"

    @property
    def job_id(self) -> str:
        """The job, as ``scontrol`` takes it: one of an array by the array's id and its own number."""
        array, task = self.environ.get("SLURM_ARRAY_JOB_ID"), self.environ.get("SLURM_ARRAY_TASK_ID")
        return f"{array}_{task}" if array and task else self.environ["SLURM_JOB_ID"]

    @property
    def restarts(self) -> int:
        """Slurm counts, whoever put the job into the queue again: we, an operator, or the loss of a node."""
        count = self.environ.get("SLURM_RESTART_COUNT", "")
        return int(count) if count.isdecimal() else 0

    def signal_step(self, launcher: str, signal_name: str) -> bool:
        """Signal the ranks of the step that srun has started, and not srun itself, which TERM would end. Independent.

        Other launchers have no step, or one of daemons, whom no signal is meant for.
        """
        if launcher != "srun":
            return False
        act(("scancel", f"--signal={signal_name}", f"{self.job_id}.{self._step()}"), SIGNAL_S)
        return True

    def _step(self) -> int:
        """Return the number of the newest step of this job: srun does not say which one is its own. Independent."""
        job = self.job_id
        answer = act(("squeue", "--steps", f"--jobs={job}", "--noheader", "--format=%i"), SIGNAL_S)
        steps = [step for line in answer.split() if (step := line.rpartition(".")[2]).isdecimal()]
        if not steps:
            raise RetryError(f"job {job} has no step yet that could be signalled")
        return max(map(int, steps))

    def is_running(self) -> bool:
        """Say whether Slurm takes this job for running: a node that is lost ends srun with code 0. Independent."""
        try:
            answer = act(("squeue", "--noheader", f"--jobs={self.job_id}", "--format=%T"))
        except RetryError:
            return True
        return "RUNNING" in answer.split()

    def requeue(self) -> Requeue | None:
        """Return what makes Slurm end this job and begin it again."""
        return Requeue(("scontrol", "requeue", self.job_id))

    def end_chain(self, chain: str) -> Command:
        """Return what takes the jobs of a chain that wait for this one out of the queue."""
        user = self.environ.get("SLURM_JOB_USER", "")
        whose = (f"--user={user}",) if user else ()
        return ("scancel", "--state=PENDING", f"--name={chain}", *whose)
