"""What supervise does around a step, in this process; steps, signals and the commands of schedulers are real ones."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

import hpcckpt as hc
from hpcckpt import native
from hpcckpt.errors import OptionError, RetryError
from hpcckpt.format import layout
from hpcckpt.format.manifest import encode
from hpcckpt.jobs import child_process, latest_checkpoint, requeue_policy, slurm, supervisor
from hpcckpt.jobs.schedulers import Scheduler, act, detect
from hpcckpt.jobs.supervisor import SuperviseSettings, step_environment_of, supervise
from hpcckpt.preemption import Halt, write_halt
from hpcckpt.preemption.walltime import JobEnd
from hpcckpt.rundir.discovery import read_manifest
from tests.support.paths import ROOT

LIMIT_S = 240.0
FOREIGN = ("SLURM_", "PBS_", "COBALT_", "OMPI_", "PMI", "PALS_", "HPCCKPT_")
REQUEUED = "scontrol requeue 42"
HEARING = """
import os, signal, sys, time
heard = set()
def ask(name):
    os.kill(os.getppid(), getattr(signal, name))
def hear(*names):
    for name in names:
        signal.signal(getattr(signal, name), lambda number, frame: heard.add(signal.Signals(number).name))
def wait(name):
    while name not in heard:
        time.sleep(0.02)
"""
HALTING = """
import sys
import numpy as np
import hpcckpt as hc
ckpt = hc.Checkpointer(sys.argv[1])
guard = hc.preemption.watch(ckpt, signals=(), verbose=0, halt_every_s=0.01)
step = 0
while not guard.should_stop(step := step + 1):
    pass
guard.save_and_exit({"w": np.zeros(3)})
"""


class Site:
    """A node of a batch job: the commands of a scheduler there, what they were told, and what supervise says."""

    def __init__(self, directory: Path) -> None:
        self.bin = directory / "bin"
        self.bin.mkdir()
        self.log = directory / "told.txt"
        self.said: list[str] = []

    def command(self, name: str, script: str = "") -> str:
        """Have a command there, which notes what it is told."""
        path = self.bin / name
        path.write_text(f'#!/bin/sh\necho "{name} $*" >>{self.log}\n{script}\n', encoding="utf-8")
        path.chmod(0o755)
        return str(path)

    def told(self, name: str) -> list[str]:
        """Return what a command was told, in order."""
        lines = self.log.read_text(encoding="utf-8").splitlines() if self.log.exists() else []
        return [line for line in lines if line.startswith(f"{name} ")]

    def supervise(
        self, *words: str, variables: dict[str, str] | None = None, **more: object
    ) -> supervisor.SuperviseResult:
        """Supervise a step of job 42 of Slurm."""
        scheduler = detect({"SLURM_JOB_ID": "42", **(variables or {})})
        return supervise(SuperviseSettings(words, shows_tables=False, **more), scheduler, self.said.append)

    def has_said(self, text: str) -> bool:
        """Return True if supervise has logged something."""
        return any(text in line for line in self.said)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """A node on which job 42 of Slurm runs."""
    for name in os.environ:
        if name.startswith(FOREIGN):
            monkeypatch.delenv(name)
    found = Site(tmp_path)
    monkeypatch.setenv("PATH", f"{found.bin}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(supervisor, "RETRY_PAUSE_S", 0.01)
    found.command("squeue", "echo RUNNING")
    found.command("scontrol")
    found.command("scancel")
    return found


def python(text: str, *words: str) -> tuple[str, ...]:
    """Return a step in Python."""
    return (sys.executable, "-c", text, *words)


def in_s(seconds: float) -> dict[str, str]:
    """Return what says that the job ends in N seconds."""
    return {"HPCCKPT_JOB_END": f"{time.time() + seconds:.3f}"}


# -- whether the job goes on -----------------------------------------------------------------------


def test_a_save_that_ends_behind_the_time_limit_is_requeued(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requeue_policy, "ENDING_S", 3600.0)
    limit = time.time() + 3.0
    site.command("squeue", "echo COMPLETING")
    step = f"hear('SIGUSR1', 'SIGTERM'); ask('SIGUSR1'); wait('SIGUSR1'); time.sleep(max(0, {limit} - time.time()))"
    step += "; ask('SIGTERM'); wait('SIGTERM'); sys.exit(75)"
    site.supervise(*python(HEARING + step), variables={"HPCCKPT_JOB_END": str(limit + 3600.0)})
    assert site.told("scontrol requeue") == [REQUEUED], site.said


@pytest.mark.parametrize(("state", "code"), [
    ("RUNNING 0 2026-11-23T11:00:00", 75),  # in its grace time, of which only the ranks are informed
    ("RUNNING 0 2026-11-23T11:00:00", 143),  # the TERM came while the ranks did not catch it yet
    ("COMPLETING 0 2026-11-23T11:00:00", 75),
    ("COMPLETING 0 2026-11-23T11:00:00", 0),
])  # fmt: skip
def test_a_job_that_slurm_preempts_is_requeued(site: Site, state: str, code: int) -> None:
    site.command("squeue", f"echo {state}")
    site.supervise("sh", "-c", f"exit {code}", variables=in_s(36000.0))
    assert site.told("scontrol requeue") == [REQUEUED], site.said


@pytest.mark.parametrize("code", [75, 143])
def test_a_job_that_slurm_has_requeued_itself_is_not_requeued_again(site: Site, code: int) -> None:
    site.command("squeue", "echo COMPLETING 1 N/A")
    assert site.supervise("sh", "-c", f"exit {code}", variables=in_s(36000.0)).code == code
    assert site.told("scontrol requeue") == []
    assert site.has_said("the scheduler has put it into the queue again")


def test_a_job_that_is_done_when_it_is_preempted_is_done(site: Site) -> None:
    site.command("squeue", "echo RUNNING 0 2026-11-23T11:00:00")
    assert site.supervise("true", variables=in_s(36000.0)).code == 0
    assert site.told("scontrol requeue") == []


def test_a_preempted_job_is_requeued_before_its_last_save_has_ended(site: Site, tmp_path: Path) -> None:
    requeued = tmp_path / "requeued"
    site.command("squeue", "echo COMPLETING 0 2026-11-23T11:00:00")
    site.command("scontrol", f"echo COMPLETING 1 N/A >{requeued}")
    step = "hear('SIGTERM'); ask('SIGTERM'); wait('SIGTERM')\n"
    step += f"end = time.time() + 60\nwhile not os.path.exists({str(requeued)!r}) and time.time() < end:\n"
    step += "    time.sleep(0.02)\nsys.exit(75)"
    site.supervise(*python(HEARING + step), variables=in_s(36000.0))
    assert len(site.told("scontrol requeue")) == 2, site.said  # at the TERM, and at the end: squeue here never changes


def test_a_signal_that_waits_is_passed_on_while_the_scheduler_refuses_a_requeue(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "RETRY_S", 20.0)
    asked, heard = tmp_path / "asked", tmp_path / "heard"
    site.command("squeue", "echo COMPLETING 0 2026-11-23T11:00:00")
    site.command("scontrol", f"touch {asked}; [ -e {heard} ] || {{ echo busy >&2; exit 1; }}")
    step = f"ask('SIGTERM')\nwhile not os.path.exists({str(asked)!r}):\n    time.sleep(0.02)\n"
    step += f"hear('SIGTERM'); wait('SIGTERM'); open({str(heard)!r}, 'w').close(); sys.exit(75)"
    site.supervise(*python(HEARING + step), variables=in_s(36000.0))
    assert heard.exists(), site.said
    assert not site.has_said("submit the job again by hand"), site.said


def test_a_job_that_somebody_ends_behind_its_warning_is_not_requeued(site: Site) -> None:
    step = "hear('SIGUSR1', 'SIGTERM'); ask('SIGUSR1'); wait('SIGUSR1'); ask('SIGTERM'); wait('SIGTERM'); sys.exit(75)"
    site.supervise(*python(HEARING + step), variables=in_s(36000.0))
    assert site.told("scontrol requeue") == []
    assert site.has_said("ended by a person")


@pytest.mark.parametrize("is_telling", [True, False])
def test_a_halted_job_stands_still_whether_or_not_its_journal_tells(
    is_telling: bool, site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    (run / "cycle-1").mkdir(parents=True)
    monkeypatch.setenv("HPCCKPT_JOURNAL", "on" if is_telling else "off")
    for _ in range(2):
        write_halt(run / "cycle-1", Halt())
        site.supervise(*python(HALTING, str(run / "cycle-1")), run=run)
        assert site.has_said("halted: a file HALT has stopped it"), site.said
    assert site.told("scontrol requeue") == []
    site.supervise("sh", "-c", "exit 75", run=run)
    assert site.told("scontrol requeue") == [REQUEUED]


def test_without_a_run_directory_it_warns_that_nobody_can_halt_the_job(site: Site, tmp_path: Path) -> None:
    site.supervise("true")
    assert site.has_said("warning: without --run")
    site.said.clear()
    site.supervise("true", run=tmp_path)
    assert not site.has_said("warning: without --run")


def test_a_journal_that_makes_no_sense_does_not_cost_the_requeue(site: Site, tmp_path: Path) -> None:
    (tmp_path / "journal.jsonl").write_text('{"event":"halted","time":1' + 400 * "0" + "}\n", encoding="utf-8")
    site.supervise("sh", "-c", "exit 75", run=tmp_path)
    assert site.told("scontrol requeue") == [REQUEUED]


def test_a_run_directory_that_cannot_be_looked_at_does_not_cost_the_requeue(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(run: Path) -> None:
        raise ValueError(f"what stands in {run}?")

    for look in ("latest", "halts"):
        monkeypatch.setattr(latest_checkpoint, look, fail)
    site.supervise("sh", "-c", "exit 75", run=tmp_path)
    assert site.told("scontrol requeue") == [REQUEUED]
    assert site.has_said("warning: ValueError: what stands in")


# -- a run that is locked --------------------------------------------------------------------------


@pytest.mark.parametrize("chain", ["", "night"])
def test_a_warning_while_a_lock_is_waited_for_is_no_failure(chain: str, site: Site) -> None:
    def say(text: str) -> None:
        site.said.append(text)
        if text.startswith("the run is locked"):
            os.kill(os.getpid(), signal.SIGUSR1)

    scheduler = detect({"SLURM_JOB_ID": "42"})
    report = supervise(SuperviseSettings(("sh", "-c", "exit 8"), chain=chain, shows_tables=False), scheduler, say)
    assert report.code == 8
    assert site.told("scontrol requeue") == ([] if chain else [REQUEUED])
    assert site.told("scancel") == []


def test_the_end_of_the_job_is_watched_while_a_lock_is_waited_for(site: Site) -> None:
    site.supervise("sh", "-c", "exit 8", lead_s=3599.0, variables=in_s(3600.0))
    assert site.told("scontrol requeue") == [REQUEUED]
    assert sum(line.startswith("step: ") for line in site.said) == 1


def test_a_step_is_asked_to_stop_in_time_though_the_clock_is_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time
    deadline = child_process.Deadline(now() + 3600.0, lead_s=3599.0)
    monkeypatch.setattr(time, "time", lambda: now() - 7200.0)
    left_s = deadline.left_s()
    assert left_s is not None
    assert left_s <= 1.0
    assert not deadline.is_near()


def test_the_newest_checkpoint_is_that_also_in_a_copy_of_the_run_with_other_times(tmp_path: Path) -> None:
    paths = []
    for number in (1, 2):
        with hc.Checkpointer(tmp_path / f"cycle-{number}") as ckpt:
            paths.append(ckpt.save(5, {"w": 1.0}).result().path)
    place = paths[0] / layout.MANIFEST
    earlier = replace(read_manifest(paths[0]), created="2026-01-01T00:00:00+00:00")
    place.write_bytes(encode(earlier, native.crc32c))
    os.utime(paths[0], (time.time() + 60.0,) * 2)
    found = latest_checkpoint.latest(tmp_path)
    assert found is not None
    assert found.path == paths[1]


# -- what the scheduler is told --------------------------------------------------------------------


def test_a_requeue_that_fails_is_tried_again(site: Site) -> None:
    site.command("scontrol", f"[ $(grep -c requeue {site.log}) -ge 3 ] || {{ echo Socket timed out; exit 1; }}")
    site.supervise("sh", "-c", "exit 75")
    assert site.told("scontrol requeue") == [REQUEUED] * 3
    assert not site.has_said("by hand")


def test_a_requeue_is_told_once_though_slurm_ends_whoever_tells_it(site: Site) -> None:
    site.command("scontrol", f"[ $(grep -c requeue {site.log}) -gt 1 ] || kill -TERM $PPID $$")
    site.supervise("sh", "-c", "exit 75")
    assert site.told("scontrol requeue") == [REQUEUED]
    assert not site.has_said("tried again")


def test_a_job_that_waits_in_the_queue_already_is_not_put_there_again_and_again(site: Site) -> None:
    lost, again = "Socket timed out on send/recv operation", "Job is pending execution for job 42"
    site.command("scontrol", f"[ $(grep -c requeue {site.log}) = 1 ] && echo {lost} || echo {again}; exit 1")
    site.supervise("sh", "-c", "exit 75")
    assert site.told("scontrol requeue") == [REQUEUED] * 2
    assert not site.has_said("by hand")


def test_a_requeue_that_is_refused_for_good_is_told_at_once(site: Site) -> None:
    site.command("scontrol", "echo Requested operation is presently disabled; exit 1")
    site.supervise("sh", "-c", "exit 75")
    assert site.told("scontrol requeue") == [REQUEUED]
    assert site.has_said("submit the job again by hand")


@pytest.mark.parametrize("is_again", [True, False])
def test_a_job_is_submitted_anew_only_if_it_certainly_was_not(
    is_again: bool, site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "act", functools.partial(act, timeout_s=LIMIT_S if is_again else 1.0))
    site.command("qstat", "exit 1")
    refused = f"[ $(grep -c '^qsub' {site.log}) -lt 3 ] || echo Unauthorized Request; exit 1"
    site.command("qsub", refused if is_again else "exec sleep 60")
    (tmp_path / "denied.pbs").write_text("#!/bin/sh\n", encoding="utf-8")
    scheduler = detect({"PBS_JOBID": "7.standin", "HPCCKPT_SCRIPT": str(tmp_path / "denied.pbs")})
    supervise(SuperviseSettings(("sh", "-c", "exit 75"), shows_tables=False), scheduler, site.said.append)
    assert site.has_said("; tried again in") is is_again
    assert not is_again or len(site.told("qsub")) == 3
    assert site.has_said("submit the job again by hand")


def test_a_chain_that_cannot_be_ended_is_a_matter_of_its_own(site: Site) -> None:
    site.command("scancel", "echo access denied; exit 1")
    site.supervise("true", chain="night")
    assert site.has_said("remove the waiting jobs of the chain night from the queue by hand")
    assert not site.has_said("submit the job again")


def test_a_chain_whose_step_cannot_be_started_is_ended(site: Site) -> None:
    with pytest.raises(OptionError, match="'no-such-program' cannot be started"):
        site.supervise("no-such-program", chain="night")
    assert site.told("scancel") == ["scancel --state=PENDING --name=night"]


def test_no_answer_of_squeue_is_not_the_end_of_the_job(site: Site) -> None:
    site.command("squeue", '[ -n "$SQUEUE_STATES" ] || echo RUNNING')
    assert detect({"SLURM_JOB_ID": "42"}).state().is_running
    site.command("squeue")
    assert detect({"SLURM_JOB_ID": "42"}).state().is_running


def test_a_term_while_checkpoints_are_listed_ends_the_job(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "show", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    site.supervise("sh", "-c", "exit 75", variables=in_s(3600.0))
    assert site.told("scontrol requeue") == []
    assert site.has_said("ended by a person")


def test_ctrl_c_while_a_lock_is_waited_for_ends_it(site: Site) -> None:
    def say(text: str) -> None:
        if text.startswith("the run is locked"):
            os.kill(os.getpid(), signal.SIGINT)

    settings = SuperviseSettings(("sh", "-c", "exit 8"), shows_tables=False)
    assert supervise(settings, detect({"SLURM_JOB_ID": "42"}), say).code == 130
    assert site.told("scontrol requeue") == []


def test_the_step_that_is_signalled_is_that_of_the_ranks(site: Site) -> None:
    site.command("squeue", "echo 42.batch 42.0 42.1")  # another step of the job is newer
    pid = site.bin / "ranks.pid"
    site.command("scancel", f"kill -USR1 $(cat {pid})")
    ranks = f"{HEARING}hear('SIGUSR1'); open('{pid}', 'w').write(str(os.getpid())); ask('SIGUSR1'); wait('SIGUSR1')"
    srun = site.bin / "srun"
    srun.write_text('#!/bin/sh\nSLURM_STEP_ID=0 SLURM_PROCID=0 exec "$@"\n', encoding="utf-8")
    srun.chmod(0o755)
    site.supervise("srun", *python(ranks + "; sys.exit(75)"), variables=in_s(3600.0))
    assert site.told("scancel") == ["scancel --signal=USR1 42.0"]


def test_one_of_an_array_is_told_from_the_others(site: Site) -> None:
    own = "*=40_2*State*) echo COMPLETING ;; *=40_2*) echo 40_2.batch 40_2.0 ;;"
    site.command("squeue", f'case "$*" in {own} *State*) echo RUNNING ;; *) echo 40_3.7 ;; esac')
    one = detect({"SLURM_JOB_ID": "40", "SLURM_ARRAY_JOB_ID": "40", "SLURM_ARRAY_TASK_ID": "2"})
    assert not one.state().is_running
    assert one.signal_step("srun", "USR1")
    assert site.told("scancel") == ["scancel --signal=USR1 40_2.0"]


def test_a_controller_that_hangs_does_not_hold_up_the_warning(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    assert child_process.N_TRIES * (2 * slurm.SIGNAL_S + child_process.AGAIN_S) < 150.0
    for name, limit_s in {"squeue": 0.5, "scancel": 5.0}.items():  # before scancel, squeue has to answer in time
        monkeypatch.setattr(slurm, "SIGNAL_S", limit_s)
        site.command(name, "exec sleep 60")
        with pytest.raises(RetryError, match=f"{name} .*timed out after {limit_s} seconds"):
            detect({"SLURM_JOB_ID": "42"}).signal_step("srun", "USR1")
        site.command(name, "echo 42.0")


# -- when the ranks are signalled ------------------------------------------------------------------


def mpirun(site: Site, *, is_ranked: bool = True) -> str:
    """Return a launcher of one rank, which hands signals on, and its code as a shell would say it."""
    rank = {"OMPI_COMM_WORLD_RANK": "0"} if is_ranked else {}
    path = site.bin / "mpirun"
    path.write_text(
        f"#!{sys.executable}\nimport os, signal, subprocess, sys\n"
        f"child = subprocess.Popen(sys.argv[1:], env={{**os.environ, **{rank}, 'SUPERVISOR': str(os.getppid())}})\n"
        "signal.signal(signal.SIGUSR1, lambda *_: child.send_signal(signal.SIGUSR1))\n"
        "code = child.wait()\nsys.exit(code if code >= 0 else 128 - code)\n",
        encoding="utf-8",
    )
    path.chmod(0o755)
    return str(path)


DEAF = HEARING + "os.kill(int(os.environ['SUPERVISOR']), signal.SIGUSR1); time.sleep({deaf})\n"


@pytest.fixture
def old(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take every step for an old one."""
    monkeypatch.setattr(child_process, "STARTUP_S", 0.0)
    monkeypatch.setattr(child_process, "LATER_CHECK_S", 0.1)


@pytest.mark.usefixtures("old")
def test_a_rank_that_is_long_in_listening_is_waited_for(site: Site) -> None:
    step = DEAF.format(deaf=1.5) + "hear('SIGUSR1'); wait('SIGUSR1'); sys.exit(75)"
    report = site.supervise(mpirun(site), *python(step), variables=in_s(3600.0))
    assert report.code == 75, site.said


@pytest.mark.usefixtures("old")
@pytest.mark.parametrize(("left_s", "is_ranked"), [(child_process.NEAR_END_S / 2, True), (3600.0, False)])
def test_a_rank_that_never_listens_or_is_not_seen_is_signalled(left_s: float, is_ranked: bool, site: Site) -> None:
    step = DEAF.format(deaf=LIMIT_S)
    report = site.supervise(mpirun(site, is_ranked=is_ranked), *python(step), variables=in_s(left_s))
    assert report.code == 128 + signal.SIGUSR1, site.said


@pytest.mark.parametrize("is_full", [True, False])
def test_a_log_that_cannot_be_written_does_not_cost_the_last_save(is_full: bool, site: Site, tmp_path: Path) -> None:
    step = python(HEARING + "hear('SIGUSR1'); print('ready', flush=True); wait('SIGUSR1'); sys.exit(75)")
    words = [sys.executable, "-m", "hpcckpt", "supervise", "--run", str(tmp_path / "none"), "--", *step]
    with open("/dev/full", "wb") as full:
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=full if is_full else subprocess.PIPE, cwd=ROOT)
    with process:
        assert process.stdout is not None
        while b"ready" not in (line := process.stdout.readline()):
            assert line, "it has ended"
        if process.stderr is not None:
            process.stderr.close()
        process.send_signal(signal.SIGUSR1)
        assert process.wait(LIMIT_S) == 75


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_do_not_change_the_exit_code(closed: str, tmp_path: Path) -> None:
    words = ["supervise", "--run", str(tmp_path / "none"), "--", "sh", "-c", "exit 75"]
    command = f'exec "$0" -m hpcckpt "$@" {closed}'
    assert subprocess.run(["sh", "-c", command, sys.executable, *words], cwd=ROOT, check=False).returncode == 75


# -- what the ranks find ---------------------------------------------------------------------------


def none() -> Scheduler:
    """Return no scheduler."""
    return detect({})


def test_ranks_find_the_run_and_the_end_that_supervise_goes_by(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPCCKPT_RUN", "base")
    monkeypatch.setenv("HPCCKPT_JOB_END", "1700000000")
    found = step_environment_of(SuperviseSettings(("true",), Path("base/3")), none(), JobEnd(1900000000.0, "scontrol"))
    assert (found["HPCCKPT_RUN"], found["HPCCKPT_JOB_END"]) == ("base/3", "1900000000")


def test_a_chain_of_slurm_jobs_does_not_hand_on_what_is_of_one_job(site: Site) -> None:
    site.command("sbatch", f"env | grep ^HPCCKPT_ >>{site.log}")
    own = {"HPCCKPT_JOB_END": "1", "HPCCKPT_JOB_START": "2", "HPCCKPT_RESTARTS": "3", "HPCCKPT_CONFIG": "c"}
    words = [str(ROOT / "scripts" / "slurm" / "chain.sh"), "2", "x.sbatch"]
    subprocess.run(words, env={**os.environ, **own}, check=True)
    names = {
        line.partition("=")[0]
        for line in site.log.read_text(encoding="utf-8").splitlines()
        if line.startswith("HPCCKPT_")
    }
    assert names == {"HPCCKPT_CHAIN", "HPCCKPT_CONFIG"}


# -- what is asked for once ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variables", "chain", "request_id"),
    [
        ({"SLURM_JOB_ID": "42", "HPCCKPT_REQUEST": "7"}, "", "42"),  # Slurm has passed on what another job exports
        ({"SLURM_JOB_ID": "42", "SLURM_ARRAY_JOB_ID": "40", "SLURM_ARRAY_TASK_ID": "2"}, "", "40_2"),
        ({"PBS_JOBID": "42.pbs"}, "", "42.pbs"),
        ({"PBS_JOBID": "42.pbs", "HPCCKPT_REQUEST": "41.pbs"}, "", "41.pbs"),
        ({"COBALT_JOBID": "42", "HPCCKPT_REQUEST": "41"}, "", "41"),
        ({"PBS_JOBID": "42.pbs"}, "us", "us"),
        ({"HPCCKPT_REQUEST": "41"}, "", ""),
    ],
)
def test_a_job_is_one_request_however_often_it_is_requeued(
    variables: dict[str, str], chain: str, request_id: str
) -> None:
    settings = SuperviseSettings(("true",), chain=chain)
    assert step_environment_of(settings, detect(variables), None)["HPCCKPT_REQUEST"] == request_id
