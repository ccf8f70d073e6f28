"""Under a launcher: rank 0 acts, every rank exits with its code, and no rank hangs."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpcckpt.cli import launcher
from hpcckpt.testing.ranks import run_ranks
from tests.support.mpi import launch as mpi_launch

Cli = Callable[..., Any]
LAUNCHERS = {
    "mpirun": {"OMPI_COMM_WORLD_RANK": "{rank}", "OMPI_COMM_WORLD_SIZE": "2"},
    "hydra": {"PMI_RANK": "{rank}", "PMI_SIZE": "2"},
    "pmix": {"PMIX_RANK": "{rank}"},
    "srun without PMI": {"SLURM_PROCID": "{rank}", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2"},
    "pals": {"PALS_RANKID": "{rank}"},
    "aprun": {"ALPS_APP_PE": "{rank}"},
}


@pytest.mark.parametrize("name", LAUNCHERS)
def test_only_rank_0_acts_where_mpi_cannot_connect(
    name: str, spawn: Cli, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = {"PYTHONPATH": str(saved.parent / "blocked")}
    (saved.parent / "blocked" / "mpi4py").mkdir(parents=True)
    (saved.parent / "blocked" / "mpi4py" / "__init__.py").write_text(
        "raise ImportError('no MPI here')", encoding="utf-8"
    )
    monkeypatch.setenv("PYTHONPATH", blocked["PYTHONPATH"])
    results = [
        spawn("info", saved, 99, **{key: value.format(rank=rank) for key, value in LAUNCHERS[name].items()})
        for rank in (0, 1)
    ]
    assert [result.code for result in results] == [4, 0]
    assert "no step 99" in results[0].err
    assert (results[1].out, results[1].err) == ("", "")


def test_a_batch_step_of_slurm_is_no_launcher(spawn: Cli, saved: Path) -> None:
    assert spawn("info", saved, SLURM_PROCID="0", SLURM_JOB_ID="7", SLURM_NTASKS="8").code == 0


def test_one_rank_needs_no_mpi(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "1")
    monkeypatch.setattr(launcher, "connect", lambda: pytest.fail("must not start MPI"))
    assert launcher.run_on_root(lambda: 3) == 3


def test_nobody_acts_where_launchers_disagree(spawn: Cli, saved: Path) -> None:
    step = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "0"}
    mpirun = LAUNCHERS["mpirun"] | {"OMPI_COMM_WORLD_RANK": "0"}
    result = spawn("prune", saved, "--keep-last", "1", "--yes", **mpirun, **step)
    assert result.code == 1
    assert "OMPI_COMM_WORLD_SIZE=2, srun says SLURM_STEP_NUM_TASKS=4" in result.err
    assert len(list(saved.glob("step-*"))) == 3


def test_a_shell_that_a_rank_has_left_says_why_nothing_comes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in LAUNCHERS["srun without PMI"].items():
        monkeypatch.setenv(name, value.format(rank=1))
    assert launcher.run_on_root(lambda: pytest.fail("only rank 0 acts")) == 0
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert launcher.run_on_root(lambda: pytest.fail("only rank 0 acts")) == 0
    assert "HPCCKPT_LAUNCHER=none" in capsys.readouterr().err


@pytest.mark.parametrize("n_ranks", [2, 3])
def test_every_rank_gets_rank_0_s_code(n_ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    acted: list[int] = []

    def run(comm: Any) -> int:
        return launcher.share(comm, lambda: acted.append(comm.rank) or 5)

    assert run_ranks(n_ranks, run) == [5] * n_ranks
    assert acted == [0]


def test_no_colour_under_a_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    from hpcckpt.cli.output import is_fancy

    class Terminal:
        def isatty(self) -> bool:
            return True

    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert is_fancy(Terminal())  # type: ignore[arg-type]
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    assert not is_fancy(Terminal())  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("mpirun") is None, reason="needs mpirun")
@pytest.mark.parametrize(("words", "code"), [(["list", "RUN"], 0), (["info", "RUN", "99"], 4), (["nonsense"], 2)])
def test_mpirun(words: list[str], code: int, saved: Path, environment: Callable[..., dict[str, str]]) -> None:
    pytest.importorskip("mpi4py")
    command = " ".join([sys.executable, "-m", "hpcckpt", *words]).replace("RUN", str(saved))
    done = subprocess.run(
        ["mpirun", "-n", "3", "sh", "-c", f"{command} 2>/dev/null; echo code $?"],
        env={**mpi_launch.clean_environment(), **environment()},
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.stdout.count(f"code {code}") == 3, done.stdout + done.stderr
    assert done.stdout.count("STEP") == (1 if code == 0 else 0)
