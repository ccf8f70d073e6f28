"""A Slurm cluster of this machine alone: munged, slurmctld, and a slurmd for each of its nodes, all in one directory.

Nothing of it is the system's: ports, sockets, keys, state and logs are its own, and it ends with the test.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scancel", "scontrol", "squeue")
NODES = ("n1", "n2")
CPUS = 8
KILL_WAIT_S = 30
START_S = 90.0
CONFIG = """\
ClusterName=test
SlurmctldHost=localhost
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={directory}/munge.socket,cred_expire=5
CredType=cred/munge
SlurmctldPort={ctld_port}
SlurmctldPidFile={directory}/slurmctld.pid
SlurmctldLogFile={directory}/slurmctld.log
SlurmdPidFile={directory}/slurmd-%n.pid
SlurmdLogFile={directory}/slurmd-%n.log
SlurmdSpoolDir={directory}/spool-%n
StateSaveLocation={directory}/state
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
KillWait={kill_wait_s}
SlurmdTimeout=300
MailProg=/bin/true
MpiDefault=none
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> list[str]:
    """Return which of the programs that it takes are not installed."""
    return [name for name in PROGRAMS if find(name) is None]


def find(name: str) -> str | None:
    """Return where a program is; daemons stand where ordinary users do not look."""
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


class Job(NamedTuple):
    """What ``scontrol show job`` says."""

    state: str
    restarts: int
    exit_code: str
    reason: str
    fields: Mapping[str, str]


class Cluster:
    """A cluster that is up from `start` to `stop`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.environment = {**_clean(os.environ), "SLURM_CONF": str(directory / "slurm.conf")}
        self._daemons: list[subprocess.Popen[bytes]] = []

    # -- up and down -----------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the daemons, and wait until all nodes take jobs."""
        for name in ("state", *(f"spool-{node}" for node in NODES)):
            (self.directory / name).mkdir(parents=True)
        key = self.directory / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o600)
        ports = free_ports(1 + len(NODES))
        nodes = "\n".join(
            f"NodeName={node} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs={CPUS} State=UNKNOWN"
            for node, port in zip(NODES, ports[1:], strict=True)
        )
        (self.directory / "slurm.conf").write_text(
            CONFIG.format(
                user=getpass.getuser(),
                directory=self.directory,
                ctld_port=ports[0],
                nodes=nodes,
                kill_wait_s=KILL_WAIT_S,
            ),
            encoding="utf-8",
        )
        self._start_munge(key)
        self._daemon("slurmctld", "-D", "-i")
        for node in NODES:
            self._daemon("slurmd", "-D", "-N", node)
        self.wait(lambda: self.idle_nodes() == set(NODES), START_S, "all nodes to be idle")

    def _start_munge(self, key: Path) -> None:
        here = self.directory
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
        """End all jobs and daemons; nothing of it is left."""
        with contextlib.suppress(subprocess.SubprocessError, AssertionError):
            self.empty()
        for daemon in reversed(self._daemons):
            daemon.terminate()
        for daemon in reversed(self._daemons):
            try:
                daemon.wait(20)
            except subprocess.TimeoutExpired:
                daemon.kill()
        for pid in self._left_behind():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def empty(self) -> None:
        """End all jobs, and have all nodes take jobs again."""
        for job in self.queue():
            self.run("scancel", job, check=False)
        self.wait(lambda: not self.queue(), 60.0, "jobs to end")
        for node in set(NODES) - self.idle_nodes():
            self.run("scontrol", "update", f"NodeName={node}", "State=RESUME", check=False)

    def queue(self) -> list[str]:
        """Return the ids of all jobs that wait, run, or are being ended."""
        return self.run("squeue", "--noheader", "--array", "--format=%i").split()

    def _left_behind(self) -> Iterator[int]:
        """Yield processes that still work for this cluster: steps' daemons, and what they started."""
        mark = f"SLURM_CONF={self.environment['SLURM_CONF']}".encode()
        for each in Path("/proc").iterdir():
            if each.name.isdigit() and int(each.name) != os.getpid():
                with contextlib.suppress(OSError):
                    if mark in (each / "environ").read_bytes().split(b"\0"):
                        yield int(each.name)

    # -- what one does with it -------------------------------------------------------------------------

    def run(self, *command: str, check: bool = True, cwd: Path | None = None, **environ: str) -> str:
        """Run a program of Slurm's, and return what it prints."""
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=120,
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
        """Return the nodes that take jobs and have none."""
        return set(self.run("sinfo", "--noheader", "--Node", "--states=idle", "--format=%N", check=False).split())

    def wait_for(self, job_id: str, *states: str, timeout_s: float) -> Job:
        """Wait until a job is in one of these states."""
        self.wait(lambda: self.job(job_id).state in states, timeout_s, f"job {job_id} to be {' or '.join(states)}")
        return self.job(job_id)

    def wait(self, is_so: Callable[[], bool], timeout_s: float, what: str, every_s: float = 0.2) -> None:
        """Wait until something is so."""
        end = time.monotonic() + timeout_s
        while not is_so():
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
        parts += ["\n".join([f"--- {log.name}", *log.read_text(errors="replace").splitlines()[-15:]]) for log in logs]
        return "\n".join(parts)


def _clean(environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without a trace of a job that the tests themselves may run in."""
    foreign = ("SLURM_", "SBATCH_", "PMI", "OMPI_COMM_", "PBS_", "COBALT_", "HPCCKPT_RUN", "HPCCKPT_JOB_")
    return {name: value for name, value in environ.items() if not name.startswith(foreign)}


def free_ports(count: int) -> list[int]:
    """Return ports that nobody uses."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
