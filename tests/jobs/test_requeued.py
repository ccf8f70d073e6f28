"""Jobs of PBS and Cobalt that are checkpointed, submitted again and completed; stand-ins for both, a real mpirun."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from batch_server import ROOT, BatchServer, Ran
from mpi_launch import find_mpirun

pytestmark = pytest.mark.skipif(find_mpirun() is None, reason="needs mpirun")
Script = Callable[..., tuple[int, str, str]]
STEPS = 150
LOOP = [
    "python",
    str(ROOT / "examples" / "custom_loop.py"),
    "--directory",
    "run",
    "--steps",
    str(STEPS),
    "--pause",
    "0.05",
]


def numbers(pattern: str, ran: Sequence[Ran]) -> list[int]:
    """Return the numbers that jobs print, one for each job."""
    return [int(found[1]) for each in ran if (found := re.search(pattern, each.out))]


def assert_carried_on(ran: Sequence[Ran], n_jobs: int) -> None:
    """Check that each job went on where the one before it had stopped, and that the last one was done."""
    codes = [each.code for each in ran]
    log = "\n".join(each.out for each in ran)
    assert codes == [75] * (n_jobs - 1) + [0], log
    begun, stopped = numbers(r"begins behind step (\d+)", ran), numbers(r"stopped step=(\d+) exit=75", ran)
    assert begun == [0, *stopped]
    assert f"done step={STEPS}" in ran[-1].out
    assert [int(found) for each in ran for found in re.findall(r" restart=(\d+)/", each.out)] == list(range(len(ran)))


def loop_script(server: BatchServer, jobscript: Script, *words: str) -> Path:
    """Write what ``hpcckpt jobscript`` prints for the loop."""
    code, script, err = jobscript(*words, "--run", "run", "--time", "10m", "--", *LOOP)
    assert code == 0, err
    path = server.work / "loop.job"
    path.write_text(script)
    path.chmod(0o755)
    return path


@pytest.mark.timeout(300)
def test_a_pbs_job_submits_itself_again_until_it_is_done(pbs: BatchServer, jobscript: Script) -> None:
    words = ["--scheduler", "pbs", "--nodes", "2", "--cpus-per-rank", "1"]
    script = loop_script(pbs, jobscript, *words)
    submitted = ["-A", "mine", "-q", "preemptable", "-l", "filesystems=home", "-v", "COLOUR=red"]
    pbs.submit(*submitted, str(script), COLOUR="blue")
    ran = pbs.drain("begins behind step", n_warned=2)
    assert_carried_on(ran, 3)
    assert "end=" in ran[0].out
    assert "(qstat)" in ran[0].out
    jobs = pbs.jobs()
    for key in ("account", "queue", "resources", "name"):
        assert [job[key] for job in jobs] == [jobs[0][key]] * len(jobs)
    assert {job["variables"]["COLOUR"] for job in jobs} == {"red"}
    assert [job["depend"] for job in jobs[1:]] == [[f"afterany:{job['id']}"] for job in jobs[:-1]]
    assert "a restart would use step" in ran[0].out  # hpcckpt list, at the end


@pytest.mark.timeout(300)
def test_a_cobalt_job_submits_itself_again_until_it_is_done(cobalt: BatchServer, jobscript: Script) -> None:
    script = loop_script(cobalt, jobscript, "--scheduler", "cobalt", "--nodes", "2", "--cpus-per-rank", "4")
    cobalt.submit("-A", "mine", "-q", "debug-flat-quad", "--env", "COLOUR=red:TASTE=sweet", str(script))
    ran = cobalt.drain("begins behind step", n_warned=1)
    assert_carried_on(ran, 2)
    assert "(COBALT_ENDTIME)" in ran[0].out
    assert {job["variables"]["COLOUR"] for job in cobalt.jobs()} == {"red"}
    assert {job["nodes"] for job in cobalt.jobs()} == {2}
    launched = [json.loads(line) for line in (cobalt.directory / "launched.jsonl").read_text().splitlines()]
    assert {(one["by"], one["n"]) for one in launched} == {("aprun", 2)}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_chain_of_pbs_jobs_ends_with_the_job_that_is_done(pbs: BatchServer, jobscript: Script) -> None:
    script = loop_script(pbs, jobscript, "--scheduler", "pbs", "--nodes", "1")
    done = pbs.run(str(ROOT / "scripts/pbs/chain.sh"), "9", "-A", "mine", "-l", "filesystems=home", str(script))
    assert done.returncode == 0, done.stderr
    assert len(pbs.jobs()) == 9
    ran = pbs.drain("begins behind step", n_warned=1)
    assert [each.code for each in ran] == [75, 0]
    assert len(pbs.jobs()) == 9  # nobody has submitted any besides
    assert f"done step={STEPS}" in ran[-1].out


def failing(server: BatchServer, jobscript: Script, *words: str) -> Path:
    """Write a script whose program fails."""
    code, script, err = jobscript(*words, "--time", "5m", "--", "python", "-c", "raise SystemExit(3)")
    assert code == 0, err
    path = server.work / "failing.job"
    path.write_text(script)
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("kind", ["pbs", "cobalt"])
def test_a_job_that_fails_is_not_submitted_again(kind: str, request: pytest.FixtureRequest, jobscript: Script) -> None:
    server: BatchServer = request.getfixturevalue(kind)
    script = failing(server, jobscript, "--scheduler", kind, "--nodes", "1")
    server.submit("-A", "mine", *(["-l", "filesystems=home"] if kind == "pbs" else []), str(script))
    assert [each.code for each in server.drain()] == [3]


def test_a_failure_ends_the_chain(pbs: BatchServer, jobscript: Script) -> None:
    script = failing(pbs, jobscript, "--scheduler", "pbs", "--nodes", "1")
    pbs.run(str(ROOT / "scripts/pbs/chain.sh"), "3", "-A", "mine", "-l", "filesystems=home", str(script))
    assert len(pbs.jobs()) == 3
    assert [each.code for each in pbs.drain()] == [3]
