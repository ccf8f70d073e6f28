"""A login node: the wheel without its native part, in an environment with nothing but its own dependencies."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import venv
from pathlib import Path

import numpy as np
import pytest

import hpcckpt as hc
from hpcckpt.testing.ranks import run_ranks
from tests.support.paths import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def run(*command: str | Path, **variables: str) -> str:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("OMPI_", "PMI", "PYTHON"))}
    done = subprocess.run(
        [*map(str, command)], env={**clean, **variables}, capture_output=True, text=True, check=False, cwd="/"
    )
    assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def login_node(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the bin directory of a fresh environment that holds the pure wheel and what it asks for."""
    room = tmp_path_factory.mktemp("login")
    source = room / "source"  # building in a copy leaves the tree as it is
    source.mkdir()
    for name in ("hpcckpt", "pyproject.toml", "README.md", "LICENSE"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, source / name)
    for extension in source.rglob("*.so"):
        extension.unlink()
    venv.create(room / "venv", with_pip=True)
    run(room / "venv/bin/python", "-m", "pip", "install", "-q", source, HPCCKPT_PURE="1", HOME=str(room))
    return room / "venv/bin"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run directory with two steps, saved by three ranks."""
    directory = tmp_path_factory.mktemp("run") / "a"

    def save(comm: object) -> None:
        with hc.Checkpointer(directory, comm=comm) as ckpt:
            for step in (1, 2):
                state = {"w": np.arange(1000, dtype=np.float32) * step, "b": np.full(3, step)}
                ckpt.save(step, state, metrics={"loss": 1 / step})

    run_ranks(3, save)
    return directory


def test_nothing_but_its_own_dependencies_is_installed(login_node: Path) -> None:
    found = {p["name"].lower() for p in json.loads(run(login_node / "python", "-m", "pip", "list", "--format", "json"))}
    assert not found & {"mpi4py", "tensorflow", "h5py", "horovod", "torch"}
    probe = "import hpcckpt.native as n; print(n.IMPLEMENTATION)"
    assert run(login_node / "python", "-c", probe).strip() == "pure"


def test_list_verify_and_restore_work_without_mpi_tensorflow_hdf5_and_native(
    login_node: Path, saved: Path, tmp_path: Path
) -> None:
    tool = login_node / "hpcckpt"
    listed = json.loads(run(tool, "list", saved, "--json"))
    assert [step["step"] for step in listed["checkpoints"]] == [1, 2]
    run(tool, "verify", saved)
    run(tool, "restore", saved, "--out", tmp_path / "w.npz")
    with np.load(tmp_path / "w.npz") as restored:
        np.testing.assert_array_equal(restored["w"], np.arange(1000, dtype=np.float32) * 2)


@pytest.mark.skipif(not (shutil.which("cmake") and shutil.which("cc")), reason="needs CMake and a compiler")
def test_plugins_can_be_written_built_and_used_without_the_native_part(login_node: Path, tmp_path: Path) -> None:
    project = tmp_path / "fresh"
    run(login_node / "hpcckpt", "plugin", "new", "fresh", project, "--lang", "c")
    run(shutil.which("cmake") or "", "-S", project, "-B", project / "build")
    run(shutil.which("cmake") or "", "--build", project / "build")
    assert run(login_node / "python", project / "try_it.py").splitlines()[-1] == "loaded step 2: equal"


def test_help_starts_fast(login_node: Path) -> None:
    """0.3 s is promised; a start does nothing but compute, so its CPU time tells on a busy machine too."""
    run(login_node / "hpcckpt", "--help")  # byte-compiles

    def cpu_seconds() -> float:
        began = resource.getrusage(resource.RUSAGE_CHILDREN)
        run(login_node / "hpcckpt", "--help")
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        return ended.ru_utime + ended.ru_stime - began.ru_utime - began.ru_stime

    assert any(cpu_seconds() < 0.3 for _ in range(20)), "what shares caches and cores with it costs it time as well"
