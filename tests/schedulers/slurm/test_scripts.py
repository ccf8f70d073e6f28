"""The batch scripts for Slurm, as far as a laptop can tell: what they would do, and what they refuse."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.support.slurm.jobs import BIN, done, log

SCRIPTS = ROOT / "scripts" / "slurm"
BATCH = ("train.sbatch", "train_array.sbatch", "restart.sbatch", "program.sbatch")


def dry(script: str, *words: str, **environ: str) -> str:
    """Return what a script says that it would do."""
    done = run(script, *words, HPCCKPT_DRY_RUN="1", **environ)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def run(script: str, *words: str, scripts: Path = SCRIPTS, **environ: str) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    env = {"PATH": path, "HOME": "/nonexistent", "TMPDIR": os.environ.get("TMPDIR", "/tmp"), **environ}
    command = ["bash", str(scripts / script), *words]
    cwd = ROOT if scripts == SCRIPTS else scripts
    return subprocess.run(command, env=env, capture_output=True, text=True, cwd=cwd, timeout=240, check=False)


def test_train_starts_one_step_for_a_configuration_in_its_run_directory():
    told = dry("train.sbatch", "examples/configs/mnist.hjson", "--set", "seed=1")
    assert (
        "would start: srun --kill-on-bad-exit=0 --wait=120 python -m hpcckpt.jobs.binding hpcckpt train "
        "-c examples/configs/mnist.hjson --run runs/mnist --set seed=1\n"
    ) in told
    assert "scontrol requeue JOBID" in told


def test_each_one_of_an_array_has_its_own_seed_and_directory():
    told = dry("train_array.sbatch", "c.hjson", SLURM_ARRAY_JOB_ID="40", SLURM_ARRAY_TASK_ID="3", HPCCKPT_RUN="/r/a")
    assert "hpcckpt train -c c.hjson --run /r/a/3 --set seed=3\n" in told
    assert "scontrol requeue 40_3" in told


def test_a_restart_is_one_request_to_go_back_however_often_it_is_requeued():
    for count in ("0", "1"):
        told = dry("restart.sbatch", "runs/a", "300", SLURM_JOB_ID="42", SLURM_RESTART_COUNT=count)
        assert "hpcckpt train -c runs/a/config.json --run runs/a --resume 300\n" in told
        assert "would set HPCCKPT_REQUEST=42\n" in told


def test_what_a_site_wants_comes_from_the_environment(tmp_path):
    setup = tmp_path / "site.sh"
    setup.write_text("export HPCCKPT_MPI=pmi2 HPCCKPT_BIND=no\n", encoding="utf-8")
    told = dry(
        "train.sbatch", "c.hjson", HPCCKPT_SETUP=str(setup), HPCCKPT_SRUN="--cpu-bind=cores --gpus-per-task=1",
        SLURM_CPUS_PER_TASK="7", HPCCKPT_MAX_RESTARTS="4",
    )  # fmt: skip
    assert "--mpi=pmi2 --cpus-per-task=7 --cpu-bind=cores --gpus-per-task=1 hpcckpt train" in told
    assert "restart 1 of at most 4" in told


def test_a_setup_file_does_not_see_the_arguments_and_cannot_change_them(tmp_path):
    (tmp_path / "site.sh").write_text('echo "given: $#" >&2; set -- other.hjson\n', encoding="utf-8")
    told = dry("train.sbatch", "my config.hjson", "--set", "seed=1", HPCCKPT_SETUP=str(tmp_path / "site.sh"))
    assert "given: 0\n" in told
    assert "hpcckpt train -c 'my config.hjson' --run 'runs/my config' --set seed=1\n" in told


def test_a_setup_file_that_fails_is_named(tmp_path):
    (tmp_path / "site.sh").write_text("[ -d /nowhere ] && export A=1\n", encoding="utf-8")
    done = run("train.sbatch", "c.hjson", HPCCKPT_SETUP=str(tmp_path / "site.sh"))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"{tmp_path}/site.sh ended the job with 1: a command in it failed\n"


@pytest.mark.parametrize("script", BATCH)
def test_a_script_without_its_argument_says_what_it_wants(script):
    done = run(script, HPCCKPT_DRY_RUN="1")
    assert done.returncode != 0
    assert "which " in done.stderr


@pytest.mark.parametrize("script", BATCH)
def test_a_script_needs_no_other_file_of_the_checkout(script, tmp_path):
    (tmp_path / script).write_text((SCRIPTS / script).read_text(encoding="utf-8"), encoding="utf-8")
    done = run(script, "runs/a", "latest", scripts=tmp_path, HPCCKPT_DRY_RUN="1", SLURM_SUBMIT_DIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "would start: srun " in done.stderr


def test_a_program_is_started_as_it_is_given():
    words = ["python", "train.py", "--run", "runs/a b"]
    told = dry("program.sbatch", "runs/a b", *words, SLURM_JOB_ID="7")
    assert (
        f"would start: srun --kill-on-bad-exit=0 --wait=120 python -m hpcckpt.jobs.binding {shlex.join(words)}\n"
        in told
    )
    assert "would set HPCCKPT_RUN=runs/a b\n" in told
    assert "scontrol requeue 7" in told


def test_where_hpcckpt_is_not_installed_the_job_says_how_to_get_at_it():
    done = run("train.sbatch", "c.hjson", PATH="/usr/bin:/bin")
    assert done.returncode == 127
    assert "hpcckpt is not on the PATH" in done.stderr
    assert "HPCCKPT_SETUP" in done.stderr


@pytest.mark.parametrize("script", BATCH)
def test_a_script_has_scheduler_lines_and_one_command(script):
    lines = (SCRIPTS / script).read_text(encoding="utf-8").splitlines()
    directives = {line.split("=")[0] for line in lines if line.startswith("#SBATCH ")}
    assert {"#SBATCH --signal", "#SBATCH --requeue", "#SBATCH --open-mode"} <= directives
    assert not {"#SBATCH --account", "#SBATCH --partition"} & directives
    assert lines[-3].startswith("exec hpcckpt supervise ")
    assert [line for line in lines if "hpcckpt train" in line and not line.startswith("#")] in ([], lines[-1:])


def test_a_chain_is_jobs_of_one_name_of_which_one_runs_at_a_time():
    told = dry("chain.sh", "3", "--time=1:00:00", "t.sbatch", "c.hjson", HPCCKPT_CHAIN="night").splitlines()
    expected = (
        "HPCCKPT_CHAIN=night sbatch --parsable --job-name=night --dependency=singleton --time=1:00:00 t.sbatch c.hjson"
    )
    assert told == [expected] * 3


@pytest.mark.parametrize("words", [(), ("0", "x"), ("00", "x"), ("many", "x"), ("3",)])
def test_a_chain_of_nothing_is_refused(words):
    done = run("chain.sh", *words, HPCCKPT_DRY_RUN="1")
    assert done.returncode != 0
    assert done.stdout == ""


@pytest.mark.slow
def test_ranks_have_the_environment_of_the_job_whatever_sbatch_exports(cluster, place):
    setup = place / "site.sh"
    setup.write_text(f"export PATH={BIN}:/usr/bin:/bin HPCCKPT_BIND=no MARK=found\n", encoding="utf-8")
    words = (SCRIPTS / "program.sbatch", "p", "sh", "-c", "echo mark=$MARK")
    job = cluster.sbatch("--ntasks=2", "--nodes=1", "--time=5", f"--export=HPCCKPT_SETUP={setup}", *words, cwd=place)
    assert done(cluster, job) == 0
    assert log(place, f"hpcckpt-program-{job}").count("mark=found") == 2
