"""Runs the jobs that the simulated qsub has queued, one after the other, as PBS or Cobalt would."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.jobs import standin_commands
from tests.support.mpi.launch import clean_environment
from tests.support.paths import ROOT
from tests.support.slurm.reaper import reaped

BIN = Path(__file__).parent / "bin"
KILL_S = 30.0
"""Between the TERM at the end of a job's time and the KILL."""


@dataclass
class Ran:
    """How a job ended, and what it said."""

    job: dict[str, Any]
    code: int
    out: str


@dataclass
class BatchServer:
    """A scheduler that runs what is queued.

    Attributes
    ----------
    directory : Path
        Its spool.
    kind : str
        ``pbs`` or ``cobalt``.
    work : Path
        Where jobs are submitted.
    """

    directory: Path
    kind: str
    work: Path
    extra: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.directory.mkdir()
        self.work.mkdir()
        (self.directory / "home").mkdir()
        profile = f"export PATH={shlex.quote(self.path())}\n"  # a login shell begins with that of the system
        (self.directory / "home" / ".bash_profile").write_text(profile, encoding="utf-8")

    def path(self) -> str:
        """Return the PATH of a login node: the simulated commands first, then this environment."""
        ours = [BIN / self.kind, BIN / "site", Path(sys.executable).parent]
        return os.pathsep.join([*map(str, ours), os.environ["PATH"]])

    def environ(self, **more: str) -> dict[str, str]:
        """Return the environment of a login node."""
        clean = {k: v for k, v in clean_environment().items() if not k.startswith(("HPCCKPT_", "PBS_", "COBALT_"))}
        own = {"HOME": str(self.directory / "home"), standin_commands.SERVER: str(self.directory), "PATH": self.path()}
        return {**clean, **own, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "", **self.extra, **more}

    def run(self, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
        """Run a command on the login node."""
        return subprocess.run(
            words, env=self.environ(**more), cwd=self.work, capture_output=True, text=True, check=False, timeout=240
        )

    def submit(self, *words: str, **more: str) -> str:
        """Submit a job; return its id."""
        done = self.run("qsub", *words, **more)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def jobs(self) -> list[dict[str, Any]]:
        """Return all jobs, oldest first."""
        return standin_commands.jobs(self.directory)

    def write(self, job: dict[str, Any]) -> None:
        """Write what is known of a job."""
        standin_commands.write(job, self.directory)

    def drain(self, n_stopped: int = 0, at: str = "", held: str = "", limit: int = 12) -> list[Ran]:
        """Run jobs until none can be run.

        The first ones are stopped by a USR1 (``qsig``) as soon as they say a certain thing, or by themselves, if that
        is ""; until they have ended their program is held (`slurmloop`).
        """
        ran: list[Ran] = []
        if held:
            (self.work / f"{held}.held").touch()
        while (job := self._next()) is not None:
            assert len(ran) < limit, f"{limit} jobs, and no end: {ran[-1].out}"
            ran.append(self._run(job, at if len(ran) < n_stopped else ""))
            if held and len(ran) == n_stopped:
                (self.work / f"{held}.held").unlink()
        return ran

    def _next(self) -> dict[str, Any] | None:
        """Return the next job that may run; one whose dependency cannot come true any more is deleted, as PBS does."""
        jobs = self.jobs()
        ended = {job["id"]: job["code"] for job in jobs if job["state"] == "F"}
        for job in jobs:
            if job["state"] != "Q":
                continue
            verdicts = [_may_run(one, ended) for one in job["depend"]]
            if "never" in verdicts:
                self.write({**job, "state": "F", "code": None})
                return self._next()
            if all(verdict == "now" for verdict in verdicts):
                return job
        return None

    def _run(self, job: dict[str, Any], warned_at: str) -> Ran:
        began = time.time()
        job |= {"state": "R", "run_count": job.get("run_count", 0) + 1, "stime": time.strftime("%a %b %d %H:%M:%S %Y")}
        self.write(job)
        log = self.directory / f"{job['id']}.out"
        words, environ, cwd, limit_s = (self._pbs if self.kind == "pbs" else self._cobalt)(job, began)
        mark = f"{standin_commands.SERVER}={self.directory}"
        with reaped(mark), log.open("wb") as file:  # no rank outlives its job, not even if the tests are killed
            child = subprocess.Popen(
                words, env=environ, cwd=cwd, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip
            if warned_at:
                _warn(child, log, warned_at, limit_s)
            code = _wait(child, limit_s - (time.time() - began))
        self.write({**job, "state": "F", "code": code})
        return Ran(job, code, log.read_text(errors="replace", encoding="utf-8"))

    def _pbs(self, job: dict[str, Any], began: float) -> tuple[list[str], dict[str, str], Path, float]:
        n_nodes, *needs = job["resources"]["select"].split(":")
        n_lines = next((int(need.removeprefix("mpiprocs=")) for need in needs if need.startswith("mpiprocs=")), 1)
        nodes = self.directory / f"{job['id']}.nodes"
        nodes.write_text("".join(f"x3001c0s{i}\n" * n_lines for i in range(int(n_nodes))), encoding="utf-8")
        environ = self.environ(
            **job["variables"], PBS_JOBID=job["id"], PBS_JOBNAME=job["name"], PBS_O_WORKDIR=job["workdir"],
            PBS_O_QUEUE=job["queue"], PBS_QUEUE="small", PBS_NODEFILE=str(nodes), PBS_ENVIRONMENT="PBS_BATCH",
        )  # fmt: skip
        return [job["spool"]], environ, self.directory / "home", _seconds(job["resources"]["walltime"])

    def _cobalt(self, job: dict[str, Any], began: float) -> tuple[list[str], dict[str, str], Path, float]:
        limit_s = _seconds(job["time"])
        environ = self.environ(
            **job["variables"], COBALT_JOBID=job["id"], COBALT_JOBSIZE=str(job["nodes"]),
            COBALT_STARTTIME=f"{began:.0f}", COBALT_ENDTIME=f"{began + limit_s:.0f}",
        )  # fmt: skip
        return job["words"], environ, Path(job["workdir"]), limit_s


def _may_run(depend: str, ended: dict[str, int | None]) -> str:
    kind, _, job_id = depend.partition(":")
    if job_id not in ended:
        return "later"
    code = ended[job_id]
    if kind == "afterany":
        return "now"
    assert kind == "afternotok"
    return "now" if code else "never"


def _seconds(clock: str) -> float:
    hours, minutes, seconds = ([0, 0, 0] + [int(part) for part in clock.split(":")])[-3:]
    return hours * 3600 + minutes * 60 + seconds


def _warn(child: subprocess.Popen[bytes], log: Path, text: str, limit_s: float) -> None:
    """Send USR1 to a job when it has said something."""
    deadline = time.monotonic() + limit_s
    while text not in log.read_text(errors="replace", encoding="utf-8"):
        if child.poll() is not None or time.monotonic() > deadline:
            return
        time.sleep(0.05)
    child.send_signal(signal.SIGUSR1)


def _wait(child: subprocess.Popen[bytes], limit_s: float) -> int:
    """Wait for a job; at the end of its time it has a TERM, and a KILL behind it."""
    try:
        return child.wait(limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGTERM)
    try:
        return child.wait(KILL_S)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        return child.wait()
