"""A Slurm cluster of this machine alone: munged, slurmctld, and a slurmd for each of its nodes, all in one directory.

Nothing of it is the system's: ports, sockets, keys, state and logs are its own, and it ends with the test.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import random
import re
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from tests.support.slurm.reaper import reaped

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scancel", "scontrol", "squeue")
NODES = ("n1", "n2", "n3", "n4")
"""The first two take what is submitted; n3 is for ``--partition=apart``, n4 for preemption."""
CPUS = 8
START_S = 180.0
ANSWER_S = 5.0
N_STARTS = 5
_ONE_HOST = {"OMPI_MCA_btl_tcp_if_include": "lo", "OMPI_MCA_oob_tcp_if_include": "lo"}
"""Nodes that share a host reach each other without a network."""
CONFIG = """\
ClusterName=test
SlurmctldHost=localhost
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={directory}/munge.socket,cred_expire=10
CredType=cred/munge
SlurmctldPort={ctld_port}
SlurmctldPidFile={directory}/slurmctld.pid
SlurmctldLogFile={directory}/slurmctld.log
SlurmdPidFile={directory}/slurmd-%n.pid
SlurmdLogFile={directory}/slurmd-%n.log
SlurmdSpoolDir={directory}/spool-%n
StateSaveLocation={directory}/state
TmpFS={directory}/tmp-%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,sched_interval=1
ReturnToService=2
JobRequeue=1
KillWait=120
SlurmdTimeout=3000
MessageTimeout=100
TCPTimeout=30
BatchStartTimeout=300
UnkillableStepTimeout=600
MinJobAge=86400
FirstJobId={first_job}
MailProg=/bin/true
MpiDefault=none
{nodes}
PartitionName=all Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP
PartitionName=apart Nodes=n3 MaxTime=INFINITE State=UP
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=urgent Nodes=n4 PriorityTier=9 PreemptMode=OFF MaxTime=INFINITE State=UP
PartitionName=requeue Nodes=n4 PreemptMode=REQUEUE GraceTime=3600 MaxTime=INFINITE State=UP
PartitionName=requeue-now Nodes=n4 PreemptMode=REQUEUE GraceTime=0 MaxTime=INFINITE State=UP
PartitionName=cancel Nodes=n4 PreemptMode=CANCEL GraceTime=3600 MaxTime=INFINITE State=UP
PartitionName=cancel-now Nodes=n4 PreemptMode=CANCEL GraceTime=0 MaxTime=INFINITE State=UP
"""
"""Slurm's own patience is made for machines that are not overloaded: a job that begins late would count as lost.

A node has its own TmpFS, else the PMIx servers of two nodes on one host take each other's files away.
"""


def missing() -> list[str]:
    """Return which of the programs that it takes are not installed."""
    return [name for name in PROGRAMS if find(name) is None]


def find(name: str) -> str | None:
    """Return where a program is; daemons are where ordinary users do not look."""
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


class Job(NamedTuple):
    """What ``scontrol show job`` says."""

    state: str
    restarts: int
    exit_code: str
    reason: str
    fields: Mapping[str, str]


class LostError(AssertionError):
    """A daemon has ended."""


class Cluster:
    """A cluster that is up from `start` to `stop`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        own = {"SLURM_CONF": str(directory / "slurm.conf"), "OMPI_MCA_orte_tmpdir_base": str(directory)}
        self.environment = {**_clean(os.environ), **_ONE_HOST, **own}
        self._daemons: list[subprocess.Popen[bytes]] = []
        self.mark = f"SLURM_CONF={self.environment['SLURM_CONF']}"
        self._ends = contextlib.ExitStack()

    # -- up and down -----------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the daemons, and wait until all nodes take jobs; again, if somebody was quicker to take a port."""
        for n_left in reversed(range(N_STARTS)):
            try:
                self._start()
                break
            except LostError:
                self.stop()
                if not n_left:
                    raise

    def _start(self) -> None:
        for name in ("state", *(f"{kind}-{node}" for kind in ("spool", "tmp") for node in NODES)):
            (self.directory / name).mkdir(parents=True)
        self._ends.enter_context(reaped(self.mark, str(self.directory)))
        self._configure()
        self._start_munge()
        self._daemon("slurmctld", "-D", "-i")
        for node in NODES:
            self._daemon("slurmd", "-D", "-N", node)
        self.wait(lambda: self.idle_nodes() == set(NODES), START_S, "all nodes to be idle")

    def _configure(self) -> None:
        ports = free_ports(1 + len(NODES))
        nodes = "\n".join(
            f"NodeName={node} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs={CPUS} State=UNKNOWN"
            for node, port in zip(NODES, ports[1:], strict=True)
        )
        first_job = random.SystemRandom().randrange(1, 60_000) * 1_000  # Open MPI's shared memory is named after jobs
        text = CONFIG.format(
            user=getpass.getuser(), directory=self.directory, ctld_port=ports[0], nodes=nodes, first_job=first_job
        )
        (self.directory / "slurm.conf").write_text(text, encoding="utf-8")

    def _start_munge(self) -> None:
        here = self.directory
        key = here / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o600)
        self._daemon(
            "munged", "--foreground", "--force", f"--key-file={key}", f"--socket={here}/munge.socket",
            f"--pid-file={here}/munge.pid", f"--log-file={here}/munge.log", f"--seed-file={here}/munge.seed",
        )  # fmt: skip
        self.wait((here / "munge.socket").exists, START_S, "munged")

    def _daemon(self, name: str, *words: str) -> None:
        program = find(name)
        assert program is not None
        with open(self.directory / f"{name}.out", "ab") as out:
            self._daemons.append(
                subprocess.Popen(
                    [program, *words],
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    env=self.environment,
                    start_new_session=True,
                )
            )

    def stop(self) -> None:
        """End all jobs and daemons; nothing of it is left, no file either."""
        self._ends.close()
        for daemon in self._daemons:
            daemon.wait()
        self._daemons.clear()

    def empty(self, place: Path) -> None:
        """End all jobs that were submitted in a directory, and have all nodes take jobs again."""
        for job in self.queue(place):
            self.run("scancel", "--full", "--signal=KILL", job, check=False)
            self.run("scancel", job, check=False)
        self.wait(lambda: not self.queue(place), 300.0, "jobs to end")
        down = self.run("sinfo", "--noheader", "--Node", "--states=down,drain", "--format=%N", check=False).split()
        for node in set(down):
            self.run("scontrol", "update", f"NodeName={node}", "State=RESUME", check=False)

    def queue(self, place: Path) -> list[str]:
        """Return the ids of all jobs of a directory that wait, run, or are being ended."""
        lines = self.run("squeue", "--noheader", "--array", "--format=%i %Z").splitlines()
        jobs = (line.partition(" ")[::2] for line in lines)
        return [job for job, where in jobs if where.strip() == str(place.resolve())]

    # -- what one does with it -------------------------------------------------------------------------

    def run(
        self, *command: str, check: bool = True, cwd: Path | None = None, limit_s: float = 600.0, **environ: str
    ) -> str:
        """Run a program of Slurm's, and return what it prints."""
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
            cwd=cwd,
            env={**self.environment, **environ},
        )
        if check and done.returncode != 0:
            told = f"{' '.join(command)}: {done.returncode}: {done.stdout}{done.stderr}"
            raise AssertionError(f"{told}\n{self.logs()}")
        return done.stdout

    def sbatch(self, *words: str | Path, cwd: Path, **environ: str) -> str:
        """Submit a job; return its id."""
        return self.run("sbatch", "--parsable", *map(str, words), cwd=cwd, **environ).strip()

    def job(self, job_id: str) -> Job:
        """Return what Slurm says of a job."""
        text = self.run("scontrol", "--oneliner", "show", "job", job_id)
        fields = dict(re.findall(r"(\S+?)=(\S*)", text.splitlines()[0]))
        return Job(fields["JobState"], int(fields["Restarts"]), fields["ExitCode"], fields["Reason"], fields)

    def idle_nodes(self) -> set[str]:
        """Return the nodes that take jobs and have none; none of them, if there is no answer soon."""
        command = ("sinfo", "--noheader", "--Node", "--states=idle", "--format=%N")
        try:
            return set(self.run(*command, check=False, limit_s=ANSWER_S).split())
        except subprocess.TimeoutExpired:  # somebody else may be on slurmctld's port
            return set()

    def wait_for(self, job_id: str, *states: str, timeout_s: float) -> Job:
        """Wait until a job is in one of these states."""
        self.wait(lambda: self.job(job_id).state in states, timeout_s, f"job {job_id} to be {' or '.join(states)}")
        return self.job(job_id)

    def wait(self, is_so: Callable[[], bool], timeout_s: float, what: str, every_s: float = 0.2) -> None:
        """Wait until something is so; in vain, once a daemon is lost."""
        end = time.monotonic() + timeout_s
        while not is_so():
            if any(daemon.poll() is not None for daemon in self._daemons):
                raise LostError(f"waited for {what}\n{self.logs()}")
            if time.monotonic() > end:
                raise AssertionError(f"waited {timeout_s:.0f} s for {what}\n{self.story()}")
            time.sleep(every_s)

    def story(self) -> str:
        """Return what is in the queue, and the ends of all logs."""
        return self.run("squeue", check=False) + self.run("sinfo", "--Node", "--long", check=False) + self.logs()

    def logs(self) -> str:
        """Return which daemons have ended, and the ends of all logs."""
        parts = [f"{each.args}: ended with {each.returncode}" for each in self._daemons if each.poll() is not None]
        logs = sorted([*self.directory.glob("*.log"), *self.directory.glob("*.out")])
        parts += [
            "\n".join([f"--- {log.name}", *log.read_text(errors="replace", encoding="utf-8").splitlines()[-15:]])
            for log in logs
        ]
        return "\n".join(parts)


def _clean(environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without a trace of a job that the tests themselves may run in."""
    foreign = ("SLURM_", "SBATCH_", "PMI", "OMPI_COMM_", "PBS_", "COBALT_", "HPCCKPT_RUN", "HPCCKPT_JOB_")
    return {name: value for name, value in environ.items() if not name.startswith(foreign)}


def free_ports(count: int) -> list[int]:
    """Return ports that are not in use; none of those that the system assigns by itself."""
    lowest, _ = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split())
    found: list[int] = []
    with contextlib.ExitStack() as stack:
        while len(found) < count:
            port = random.SystemRandom().randrange(10_000, max(lowest, 20_000))
            with contextlib.suppress(OSError):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
                found.append(port)
    return found
