"""Slurm, as a batch job sees it."""

from __future__ import annotations

from hpcckpt.errors import RetryError
from hpcckpt.jobs.schedulers import Command, JobState, Requeue, Scheduler, act

SIGNAL_S = 10.0
"""How long Slurm may take for an answer while a warning waits: it is tried again, and in the end srun is signalled."""

_COLUMN = 40
"""Characters of a column that squeue prints; it cuts off what is longer."""


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
        """Slurm's count, which includes requeues by operators and after the loss of a node."""
        count = self.environ.get("SLURM_RESTART_COUNT", "")
        return int(count) if count.isdecimal() else 0

    def signal_step(self, launcher: str, signal_name: str, step: str = "") -> bool:
        """Signal the ranks of the step that srun has started, and not srun itself, which TERM would end. Independent.

        Other launchers have no step, or one of daemons, which must not be signalled.
        """
        if launcher != "srun":
            return False
        act(("scancel", f"--signal={signal_name}", f"{self.job_id}.{step or self._step()}"), SIGNAL_S)
        return True

    def _step(self) -> int:
        """Return the number of the newest step of this job, if no rank on this node shows its own. Independent."""
        job = self.job_id
        answer = act(("squeue", "--steps", f"--jobs={job}", "--noheader", "--format=%i"), SIGNAL_S)
        steps = [step for line in answer.split() if (step := line.rpartition(".")[2]).isdecimal()]
        if not steps:
            raise RetryError(f"job {job} has no step yet that could be signalled")
        return max(map(int, steps))

    def state(self) -> JobState:
        """Return what Slurm reports of this job. Independent.

        It is asked because a lost node ends srun with code 0.  Preemption by REQUEUE has counted the restart when
        the script gets its TERM; preemption by CANCEL, and the grace time before both, show the time of preemption.
        """
        columns = ",".join(f"{name}:{_COLUMN}" for name in ("State", "RestartCnt", "PreemptTime"))
        try:
            answer = act(("squeue", "--noheader", f"--jobs={self.job_id}", f"--Format={columns}"))
        except RetryError:
            return JobState()
        if not answer.strip():
            return JobState()
        state, restarts, preempted = [*answer.split(), "", ""][:3]
        is_requeued = restarts.isdecimal() and int(restarts) > self.restarts
        return JobState(state == "RUNNING", is_requeued, preempted not in {"", "N/A"})

    def requeue(self) -> Requeue | None:
        """Return what makes Slurm end this job and begin it again."""
        return Requeue(("scontrol", "requeue", self.job_id))

    def end_chain(self, chain: str) -> Command:
        """Return what takes the jobs of a chain that wait for this one out of the queue."""
        user = self.environ.get("SLURM_JOB_USER", "")
        whose = (f"--user={user}",) if user else ()
        return ("scancel", "--state=PENDING", f"--name={chain}", *whose)
