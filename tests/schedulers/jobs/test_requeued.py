"""Jobs of PBS and Cobalt that are checkpointed, submitted again and completed; both simulated, a real mpirun."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence

import pytest

from tests.support.jobs.batch_server import ROOT, BatchServer, Ran
from tests.support.mpi.launch import find_mpirun
from tests.support.paths import TESTS

pytestmark = [
    pytest.mark.skipif(find_mpirun() is None, reason="needs mpirun"), pytest.mark.slow, pytest.mark.timeout(900),
]  # fmt: skip
Script = Callable[..., tuple[int, str, str]]
SITE = {"pbs": ["-A", "mine", "-l", "filesystems=home"], "cobalt": ["-A", "mine"]}
"""By scheduler: what a job must say besides its script."""
CHAIN = str(ROOT / "scripts" / "pbs" / "chain.sh")
BEGINS = "begins after step"
LOOP = ["python", str(TESTS / "support" / "slurm" / "loop.py"), "run", "5", "0.05", "1"]


def numbers(pattern: str, ran: Sequence[Ran]) -> list[int]:
    """Return the numbers that jobs print, one for each job."""
    return [int(found[1]) for each in ran if (found := re.search(pattern, each.out))]


def assert_carried_on(ran: Sequence[Ran], n_jobs: int) -> None:
    """Check that each job went on where the one before it had stopped, and that the last one was done."""
    codes = [each.code for each in ran]
    log = "\n".join(each.out for each in ran)
    assert codes == [75] * (n_jobs - 1) + [0], log
    begun, stopped = numbers(r"begins after step (\d+)", ran), numbers(r"stopped step=(\d+) exit=75", ran)
    assert begun == [0, *stopped]
    assert "loop: done step=" in ran[-1].out
    assert [int(found) for each in ran for found in re.findall(r" restart=(\d+)/", each.out)] == list(range(len(ran)))


def written(server: BatchServer, jobscript: Script, *words: str) -> str:
    """Write what ``hpcckpt jobscript`` prints, as an executable script; return its path."""
    code, script, err = jobscript("--scheduler", server.kind, "--time", "10m", *words)
    assert code == 0, err
    path = server.work / "a.job"
    path.write_text(script, encoding="utf-8")
    path.chmod(0o755)
    return str(path)


def loop_script(server: BatchServer, jobscript: Script, *words: str) -> str:
    """Write what ``hpcckpt jobscript`` prints for the loop."""
    return written(server, jobscript, *words, "--run", "run", "--", *LOOP)


def test_a_pbs_job_submits_itself_again_until_it_is_done(pbs: BatchServer, jobscript: Script) -> None:
    script = loop_script(pbs, jobscript, "--nodes", "1", "--ranks-per-node", "2")
    pbs.submit(*SITE["pbs"], "-q", "preemptable", "-v", "COLOUR=red", script, COLOUR="blue")
    ran = pbs.drain(2, BEGINS, held="run")
    assert_carried_on(ran, 3)
    assert "end=" in ran[0].out
    assert "(qstat)" in ran[0].out
    jobs = pbs.jobs()
    for key in ("account", "queue", "resources", "name"):
        assert [job[key] for job in jobs] == [jobs[0][key]] * len(jobs)
    assert {job["variables"]["COLOUR"] for job in jobs} == {"red"}
    assert [job["depend"] for job in jobs[1:]] == [[f"afterany:{job['id']}"] for job in jobs[:-1]]
    assert "a restart would use step" in ran[0].out  # hpcckpt list, at the end


def test_a_cobalt_job_submits_itself_again_until_it_is_done(cobalt: BatchServer, jobscript: Script) -> None:
    script = loop_script(cobalt, jobscript, "--nodes", "2", "--cpus-per-rank", "4")
    cobalt.submit(*SITE["cobalt"], "-q", "debug-flat-quad", "--env", "COLOUR=red:TASTE=sweet", script)
    ran = cobalt.drain(1, BEGINS, held="run")
    assert_carried_on(ran, 2)
    assert "(COBALT_ENDTIME)" in ran[0].out
    assert {job["variables"]["COLOUR"] for job in cobalt.jobs()} == {"red"}
    assert {job["nodes"] for job in cobalt.jobs()} == {2}
    launched = [
        json.loads(line) for line in (cobalt.directory / "launched.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    assert {(one["by"], one["n"]) for one in launched} == {("aprun", 2)}


@pytest.mark.parametrize("kind", SITE)
def test_a_job_that_nobody_warns_stops_by_itself_before_its_end(
    kind: str, request: pytest.FixtureRequest, jobscript: Script
) -> None:
    server: BatchServer = request.getfixturevalue(kind)
    script = loop_script(server, jobscript, "--nodes", "1", "--signal-lead", "592")  # 8 s behind the beginning
    server.submit(*SITE[kind], script)
    ran = server.drain(1, held="run")
    assert_carried_on(ran, len(ran))
    assert "signal=SIGUSR1 (592 s before the end of the job)" in ran[0].out
    assert "reason='SIGUSR1 on rank" in ran[0].out


def test_a_chain_of_pbs_jobs_ends_with_the_job_that_is_done(pbs: BatchServer, jobscript: Script) -> None:
    script = loop_script(pbs, jobscript, "--nodes", "1")
    done = pbs.run(CHAIN, "9", *SITE["pbs"], script)
    assert done.returncode == 0, done.stderr
    assert len(pbs.jobs()) == 9
    ran = pbs.drain(1, BEGINS, held="run")
    assert [each.code for each in ran] == [75, 0]
    assert len(pbs.jobs()) == 9  # no others were submitted
    assert "loop: done step=" in ran[-1].out


FAILING = ["--nodes", "1", "--", "python", "-c", "raise SystemExit(3)"]


@pytest.mark.parametrize("kind", SITE)
def test_a_job_that_fails_is_not_submitted_again(kind: str, request: pytest.FixtureRequest, jobscript: Script) -> None:
    server: BatchServer = request.getfixturevalue(kind)
    server.submit(*SITE[kind], written(server, jobscript, *FAILING))
    assert [each.code for each in server.drain()] == [3]


def test_a_failure_ends_the_chain(pbs: BatchServer, jobscript: Script) -> None:
    pbs.run(CHAIN, "3", *SITE["pbs"], written(pbs, jobscript, *FAILING))
    assert len(pbs.jobs()) == 3
    assert [each.code for each in pbs.drain()] == [3]
