"""What the tests of the command line share: a way to run it, and runs to look at."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from click.testing import CliRunner

import hpcckpt as hc
from hpcckpt.cli.app import tool
from hpcckpt.format import layout
from hpcckpt.testing.ranks import run_ranks

LAUNCHER_VARIABLES = ("OMPI_", "PMI", "PMIX_", "SLURM_", "PALS_", "ALPS_")


@dataclass(frozen=True)
class Result:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def run_tool(*words: object, answer: str | None = None) -> Result:
    """Run the command line in this process."""
    result = CliRunner().invoke(tool, [str(word) for word in words], input=answer)
    return Result(result.exit_code, result.stdout, result.stderr)


def clean_environment(**variables: str) -> dict[str, str]:
    """Return the environment of a shell that no launcher started."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHER_VARIABLES)}
    root = str(Path(hc.__file__).parents[1])
    return {**kept, "PYTHONPATH": os.pathsep.join(filter(None, [root, kept.get("PYTHONPATH")])), **variables}


def spawn_tool(*words: object, answer: str | None = None, **variables: str) -> Result:
    """Run the command line in a separate process."""
    command = [sys.executable, "-m", "hpcckpt", *map(str, words)]
    done = subprocess.run(
        command,
        env=clean_environment(**variables),
        input=answer,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    return Result(done.returncode, done.stdout, done.stderr)


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(LAUNCHER_VARIABLES):
            monkeypatch.delenv(name)


@pytest.fixture
def cli() -> Callable[..., Result]:
    """Run the command line in this process: ``cli("list", directory)``."""
    return run_tool


@pytest.fixture
def environment() -> Callable[..., dict[str, str]]:
    """The environment of a shell that no launcher started, with variables of one's own."""
    return clean_environment


@pytest.fixture
def save() -> Callable[..., Path]:
    """Save another run: ``save(directory, steps=(1,), n_ranks=2)``."""
    return save_run


@pytest.fixture
def spawn() -> Callable[..., Result]:
    """Run the command line in a separate process."""
    return spawn_tool


def state_of(step: int, rank: int = 0, n_ranks: int = 1) -> dict[str, Any]:
    """Return a state that differs between steps: replicated, sharded, narrow and per-rank tensors, objects."""
    kernel = np.arange(600, dtype=np.float32).reshape(20, 30) * step
    table, n_rows = step + np.arange(6.0).repeat(5).reshape(6, 5) // 2, 6 // n_ranks
    return {
        "model": {"dense": {"kernel": kernel, "bias": np.zeros(30, np.float32)}},
        "optimizer": {"iteration": np.array(step), "m": {"dense": {"kernel": kernel / 2}}},
        "half": np.full(7, step, ml_dtypes.bfloat16),
        "table": hc.Sharded(table[rank * n_rows : (rank + 1) * n_rows], (6, 5), (rank * n_rows, 0)),
        "seed": hc.PerRank(np.array([step, rank])),
        "epoch": step // 10,
    }


def save_run(directory: Path, steps: tuple[int, ...] = (10, 20, 30), n_ranks: int = 3) -> Path:
    """Save steps from several ranks; the loss is best at the second."""

    def save(comm: Any) -> None:
        with hc.Checkpointer(directory, comm=comm, max_to_keep=None) as ckpt:
            for number, step in enumerate(steps):
                metrics = {"val_loss": abs(number - 1) + 0.5, "acc": 0.1 * number}
                ckpt.save(step, state_of(step, comm.rank, n_ranks), metrics=metrics)

    run_ranks(n_ranks, save)
    return directory


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A run directory with steps 10, 20 (best) and 30 (latest), saved by three ranks."""
    return save_run(tmp_path / "run")


@pytest.fixture
def unreadable(saved: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same run, whose step 20 this user may not enter."""
    step = str(saved / layout.step_dirname(20))

    def refusing(act: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Any, *args: Any, **options: Any) -> Any:
            if not isinstance(path, int) and os.fspath(path).startswith(f"{step}{os.sep}"):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
            return act(path, *args, **options)

        return call

    for name in ("open", "stat", "lstat"):
        monkeypatch.setattr(os, name, refusing(getattr(os, name)))
    return saved


@pytest.fixture
def busy(saved: Path) -> Iterator[Path]:
    """The same run, while another process holds its lock."""
    code = (
        f"from hpcckpt.rundir.lock import RunLock; l = RunLock.take({str(saved)!r}); print('held', flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], env=clean_environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        yield saved
        holder.kill()
