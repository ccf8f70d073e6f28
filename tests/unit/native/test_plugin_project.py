"""``hpcckpt plugin new``, two commands of CMake, and the plugin stores: a fresh folder, nothing edited."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpcckpt as hc
from hpcckpt.errors import CorruptError, HpcckptError
from hpcckpt.native import plugins
from hpcckpt.restoring.reader import open_step
from hpcckpt.testing.ranks import run_ranks

CMAKE = shutil.which("cmake")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CMAKE is None or shutil.which("c++") is None, reason="needs CMake and a compiler"),
]
Run = Callable[..., str]


def run_in(folder: Path, *command: object) -> str:
    """Run a command where neither hpcckpt nor its Python is on the PATH."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OMPI_", "PMI", "PYTHON"))}
    words, environment = [str(word) for word in command], {**kept, "PATH": "/usr/bin:/bin"}
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


@pytest.fixture(scope="module", params=["c++", "c"])
def project(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write and build a project, as its README says."""
    folder = tmp_path_factory.mktemp("fresh folder")
    name = "fresh_" + request.param.replace("+", "p")
    run_in(folder, sys.executable, "-m", "hpcckpt", "plugin", "new", name, "--lang", request.param)
    assert "warning" not in run_in(folder / name, CMAKE, "-S", ".", "-B", "build").lower()
    assert "warning" not in run_in(folder / name, CMAKE, "--build", "build").lower()
    return folder / name


def test_what_it_wrote_builds_saves_and_loads(project: Path) -> None:
    out = run_in(project, sys.executable, "try_it.py")
    assert out.splitlines()[-4:] == ["saved step 1", "saved step 2", "loaded step 1: equal", "loaded step 2: equal"]


def test_the_library_links_to_nothing_of_hpcckpt(project: Path) -> None:
    (library,) = (project / "build").glob("lib*.so")
    assert b"_native" not in library.read_bytes()


@pytest.mark.usefixtures("no_plugins")
def test_the_sample_names_the_file_that_it_does_not_find(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(plugins.PATH_VARIABLE, str(project / "build"))
    config = "part" if project.name.endswith("_c") else "prefix=part"
    with hc.Checkpointer(tmp_path, backend=f"plugin:{project.name}", backend_options={"config": config}) as ckpt:
        ckpt.save(1, {"a": np.ones(3)}).result()
    with (
        hc.Checkpointer(tmp_path, backend=f"plugin:{project.name}") as ckpt,
        pytest.raises(HpcckptError, match=r"-0\.bin"),
    ):
        ckpt.restore({"a": np.zeros(3)})


@pytest.mark.usefixtures("no_plugins")
def test_what_it_wrote_stores_for_many_ranks_and_names_damage(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(plugins.PATH_VARIABLE, str(project / "build"))
    full = np.arange(900_000, dtype=np.float32).reshape(900, 1000)

    def save(comm: Any) -> None:
        rows = slice(300 * comm.rank, 300 * (comm.rank + 1))
        state = {"s": hc.Sharded(full[rows], full.shape, (300 * comm.rank, 0)), "all": full, "scalar": np.array(4.5)}
        with hc.Checkpointer(tmp_path, comm=comm, backend=f"plugin:{project.name}") as ckpt:
            ckpt.save(1, state).result()

    def restore(comm: Any) -> None:
        box = hc.Sharded(np.zeros((900, 500), np.float32), full.shape, (0, 500 * comm.rank))
        state = {"s": box, "all": np.zeros_like(full), "scalar": np.array(0.0)}
        with hc.Checkpointer(tmp_path, comm=comm, backend=f"plugin:{project.name}") as ckpt:
            ckpt.restore(state)
        assert np.array_equal(box.array, full[:, 500 * comm.rank : 500 * (comm.rank + 1)])
        assert np.array_equal(state["all"], full)
        assert state["scalar"] == 4.5

    run_ranks(3, save)
    run_ranks(2, restore)
    step = tmp_path / "step-0000000001"
    files = sorted(path for path in (step / "data").iterdir() if path.suffix == ".bin")
    assert len(files) == 3
    with files[1].open("r+b") as file:
        file.seek(1_000_000)
        file.write(b"damage")
    assert len(open_step(step).verify()) == 1
    with pytest.raises(CorruptError, match="checksum mismatch in what plugin"):
        hc.load(step)


def test_a_library_that_is_no_identifier_or_a_newer_package_is_refused_by_cmake(tmp_path: Path) -> None:
    from hpcckpt.cli.places import cmake_dir

    for line, text in {
        "find_package(hpcckpt 99 CONFIG REQUIRED)": "99",
        "find_package(hpcckpt 0.1 CONFIG REQUIRED)\nhpcckpt_add_plugin(a-b a.c)": "is not a C identifier",
    }.items():
        (tmp_path / "CMakeLists.txt").write_text(
            f"cmake_minimum_required(VERSION 3.18)\nproject(x LANGUAGES NONE)\n{line}\n", encoding="utf-8"
        )
        command = [str(CMAKE), "-S", ".", "-B", "build", f"-Dhpcckpt_DIR={cmake_dir()}"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode != 0
        assert text in done.stderr
