"""What a job of PBS or of Cobalt knows of itself, and how it is submitted again."""

from __future__ import annotations

import json
import shlex
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from hpcckpt.errors import RetryError
from hpcckpt.jobs import pbs as pbs_module
from hpcckpt.jobs.cobalt import Cobalt
from hpcckpt.jobs.pbs import Pbs
from hpcckpt.jobs.schedulers import detect

pytestmark = pytest.mark.one_case

STARTED = "Sun Nov 22 02:00:00 2026"
JOB = {
    "Account_Name": "mine",
    "queue": "small",
    "Job_Name": "train",
    "run_count": 1,
    "stime": STARTED,
    "Resource_List": {"select": "4:system=polaris", "walltime": "06:00:00", "filesystems": "home:eagle", "nodect": 4},
    "Variable_List": {"PBS_O_HOME": "/home/ada", "COLOUR": "red", "HPCCKPT_CONFIG": "c", "GONE": "x"},
}
ENVIRON = {
    "PBS_JOBID": "12.polaris", "PBS_JOBNAME": "train", "PBS_O_QUEUE": "prod", "PBS_QUEUE": "small",
    "PBS_O_HOME": "/home/ada", "COLOUR": "red", "HPCCKPT_CONFIG": "c", "HPCCKPT_LEAD": "600",
    "HPCCKPT_JOB_START": "1", "OTHER": "stays here",
}  # fmt: skip


@pytest.fixture
def script(tmp_path: Path) -> str:
    """A batch script."""
    (tmp_path / "12.SC").write_text("#!/bin/bash\n", encoding="utf-8")
    return str(tmp_path / "12.SC")


def told(monkeypatch: pytest.MonkeyPatch, job: dict[str, Any] | None) -> None:
    """Let the server say this of a job; ``None``: it does not answer."""

    def act(command: tuple[str, ...], timeout_s: float) -> str:
        assert command == ("qstat", "-f", "-F", "json", "12.polaris")
        if job is None:
            raise RetryError("there is no qstat")
        return json.dumps({"Jobs": {"12.polaris": job}})

    monkeypatch.setattr(pbs_module, "act", act)


def test_each_is_known_by_its_variable(tmp_path: Path) -> None:
    assert isinstance(detect(ENVIRON), Pbs)
    assert isinstance(detect({"COBALT_JOBID": "7"}), Cobalt)


def test_a_pbs_job_is_submitted_as_it_was(monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    told(monkeypatch, JOB)
    again = Pbs({**ENVIRON, "HPCCKPT_SCRIPT": script, "HPCCKPT_RESTARTS": "2"}).requeue()
    assert again is not None
    assert again.command == (
        "qsub", "-N", "train", "-A", "mine", "-q", "prod", "-l", "select=4:system=polaris", "-l", "walltime=06:00:00",
        "-l", "filesystems=home:eagle", "-W", "depend=afterany:12.polaris",
        "-v", "COLOUR,HPCCKPT_CONFIG,HPCCKPT_LEAD,HPCCKPT_REQUEST=12.polaris,HPCCKPT_RESTARTS=3", script,
    )  # fmt: skip


@pytest.mark.parametrize("job", [None, {"Variable_List": []}, {"run_count": "?"}], ids=["silent", "odd", "odder"])
def test_where_qstat_does_not_help_the_script_and_our_variables_are_submitted(
    job: dict[str, Any] | None, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    told(monkeypatch, job)
    again = Pbs({**ENVIRON, "HPCCKPT_SCRIPT": script}).requeue()
    assert again is not None
    assert again.command[-3:] == (
        "-v",
        "HPCCKPT_CONFIG,HPCCKPT_LEAD,HPCCKPT_REQUEST=12.polaris,HPCCKPT_RESTARTS=1",
        script,
    )
    assert again.command[:5] == ("qsub", "-N", "train", "-q", "prod")
    assert ("qstat shows nothing" in again.note) == (job is None)


def test_what_qstat_could_not_tell_at_the_start_is_asked_again_for_the_requeue(
    monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    job = Pbs({**ENVIRON, "HPCCKPT_SCRIPT": script})
    told(monkeypatch, None)
    assert job.restarts == 0
    told(monkeypatch, JOB)
    again = job.requeue()
    assert again is not None
    assert "-A" in again.command
    assert "qstat shows nothing" not in again.note


PLAIN = """Job Id: 12.polaris
    Job_Name = train
    Account_Name = mine
    run_count = 1
    Resource_List.filesystems = home:eagle
    Resource_List.select = 4:system=pol
\taris
    Resource_List.walltime = 06:00:00
    stime = Sun Nov 22 02:00:00 2026
    Variable_List = PBS_O_HOME=/home/ada,COLOUR=red,
\tHPCCKPT_CONFIG=c,GONE=x
"""


def test_where_the_json_of_qstat_is_none_its_text_will_do(monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    def act(command: tuple[str, ...], timeout_s: float) -> str:
        return '{"Jobs": {"12.polaris": {"Variable_List": {"A": \\033}}}}' if "json" in command else PLAIN

    monkeypatch.setattr(pbs_module, "act", act)
    plain = Pbs({**ENVIRON, "HPCCKPT_SCRIPT": script}).requeue()
    told(monkeypatch, JOB)
    assert plain == Pbs({**ENVIRON, "HPCCKPT_SCRIPT": script}).requeue()


def test_one_job_of_an_array_or_without_its_script_is_not_submitted_again(
    monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    told(monkeypatch, None)
    assert Pbs(ENVIRON).requeue() is None
    assert Pbs({**ENVIRON, "HPCCKPT_SCRIPT": "/nowhere"}).requeue() is None
    assert Pbs({**ENVIRON, "HPCCKPT_SCRIPT": script, "PBS_JOBID": "12[3].polaris"}).requeue() is None


def test_restarts_are_jobs_before_it_and_runs_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    told(monkeypatch, {**JOB, "run_count": 3})
    assert Pbs({**ENVIRON, "HPCCKPT_RESTARTS": "2"}).restarts == 4
    assert Pbs({**ENVIRON, "HPCCKPT_RESTARTS": "-7"}).restarts == 2


def test_the_end_of_a_pbs_job_is_what_the_server_says(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()
    began = time.strftime("%a %b %d %H:%M:%S %Y", time.localtime(now - 60))
    told(monkeypatch, {**JOB, "stime": began})
    found = Pbs({**ENVIRON, "PBS_WALLTIME": "1:00:00"}).job_end().end
    assert found is not None
    assert found.source == "qstat"
    assert found.at == pytest.approx(now - 60 + 6 * 3600, abs=2)


@pytest.mark.parametrize("change", [{"stime": None}, {"stime": "today"}, {"Resource_List": {"walltime": "soon"}}])
def test_where_the_server_makes_no_sense_the_scripts_own_time_counts(
    change: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    told(monkeypatch, {**JOB, **change})
    found = Pbs({**ENVIRON, "PBS_WALLTIME": "600:00:00"} | {"HPCCKPT_JOB_START": f"{time.time():.0f}"}).job_end().end
    assert found is not None
    assert found.source == "PBS_WALLTIME"


@pytest.mark.parametrize(
    ("waiting", "code", "deleted"),
    [("1.s\\n2.s", 0, "1.s 2.s\n"), ("", 0, ""), ("1.s", 3, "")],
    ids=["two", "none", "no answer"],
)
def test_the_chain_of_a_name_is_taken_out_of_the_queue(waiting: str, code: int, deleted: str, tmp_path: Path) -> None:
    """If the server does not answer, the command fails, and is tried again."""
    for name, text in {"qselect": f"printf '{waiting}'; echo \"$@\" >asked; exit {code}", "qdel": 'echo "$@"'}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    environ = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    done = subprocess.run(Pbs(ENVIRON).end_chain("my chain"), env=environ, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (code, deleted)
    assert (tmp_path / "asked").read_text(encoding="utf-8") == "-N my chain -s HQ\n"
    assert Cobalt({"COBALT_JOBID": "7"}).end_chain("chain") == ()


def test_a_cobalt_job_is_submitted_by_the_words_in_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = "-n 2 -t 30 --mode script -A mine --dependencies 5 --env A=1:B=x:y -h -n 4 s.qsub c.hjson --set seed=1"
    Path("7.cobaltlog").write_text(f"Jobid: 7\nqsub {words}\nsubmitted with cwd set to: /x\n", encoding="utf-8")
    again = Cobalt({"COBALT_JOBID": "7", "HPCCKPT_RESTARTS": "4"}).requeue()
    assert again is not None
    assert again.command == (
        "qsub", "-n", "2", "-t", "30", "--mode", "script", "-A", "mine", "-h", "-n", "4",
        "--env", "A=1:B=x:y:HPCCKPT_REQUEST=7:HPCCKPT_RESTARTS=5", "s.qsub", "c.hjson", "--set", "seed=1",
    )  # fmt: skip


@pytest.mark.parametrize(
    "words", [[], ["my cfg.hjson"], ["c.hjson", "--set", 'a."b c"=[1,  2]', ""], ["a\nb"]], ids=str
)
@pytest.mark.parametrize("has_log", [True, False])
def test_a_cobalt_job_is_submitted_with_the_arguments_that_its_script_had(
    words: list[str], has_log: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my s.qsub").write_text("#!/bin/bash\n", encoding="utf-8")
    if has_log:
        Path("7.cobaltlog").write_text(f"qsub -A mine {' '.join(['my s.qsub', *words])}\n", encoding="utf-8")
    given = " ".join(shlex.quote(word) for word in words)
    again = Cobalt({"COBALT_JOBID": "7", "HPCCKPT_SCRIPT": "my s.qsub", "HPCCKPT_ARGUMENTS": given}).requeue()
    assert again is not None
    options = ["-A", "mine"] if has_log and words != ["a\nb"] else []
    assert again.command == ("qsub", *options, "--env", "HPCCKPT_REQUEST=7:HPCCKPT_RESTARTS=1", "my s.qsub", *words)


def test_a_cobalt_job_that_is_submitted_again_is_the_same_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("7.cobaltlog").write_text("qsub --env HPCCKPT_REQUEST=5 s.qsub\n", encoding="utf-8")
    for variables, request_id in (({}, "7"), ({"HPCCKPT_REQUEST": "5"}, "5")):
        again = Cobalt({"COBALT_JOBID": "7", **variables}).requeue()
        assert again is not None
        assert again.command == ("qsub", "--env", f"HPCCKPT_REQUEST={request_id}:HPCCKPT_RESTARTS=1", "s.qsub")


def test_a_cobalt_job_without_a_log_is_submitted_by_its_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert Cobalt({"COBALT_JOBID": "7"}).requeue() is None
    again = Cobalt({"COBALT_JOBID": "7", "HPCCKPT_SCRIPT": script}).requeue()
    assert again is not None
    assert again.command == ("qsub", "--env", "HPCCKPT_REQUEST=7:HPCCKPT_RESTARTS=1", script)
    assert "7.cobaltlog does not show" in again.note


def test_a_cobalt_job_whose_log_has_an_unknown_option_is_submitted_by_its_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("7.cobaltlog").write_text("qsub -n 1 --newer 3 s.qsub\n", encoding="utf-8")
    again = Cobalt({"COBALT_JOBID": "7", "HPCCKPT_SCRIPT": script}).requeue()
    assert again is not None
    assert again.command == ("qsub", "--env", "HPCCKPT_REQUEST=7:HPCCKPT_RESTARTS=1", script)


def test_the_log_of_a_cobalt_job_may_stand_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("qsub -n 1 s.qsub\n", encoding="utf-8")
    again = Cobalt({"COBALT_JOBID": "7", "HPCCKPT_COBALTLOG": str(tmp_path / "log")}).requeue()
    assert again is not None
    assert again.command == ("qsub", "-n", "1", "--env", "HPCCKPT_REQUEST=7:HPCCKPT_RESTARTS=1", "s.qsub")
