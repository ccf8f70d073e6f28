"""The notebooks run from top to bottom; one is stored with its outputs, the others without."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from hpcckpt.train import models
from tests.support.paths import ROOT

pytestmark = [pytest.mark.tf, pytest.mark.slow]
NOTEBOOKS = ROOT / "notebooks"
NAMES = sorted(path.name for path in NOTEBOOKS.glob("*.ipynb"))
NEEDED = ("tensorflow", "nbclient", "ipykernel", "matplotlib", "safetensors", "sklearn")
EXECUTED = "large_model_support.ipynb"
"""Stored with its outputs: its figures are what it is about."""
MAX_BYTES = 200_000
MISSING = [name for name in NEEDED if find_spec(name) is None]
LIMIT_S = 840
EXECUTE = """
import sys, tempfile, nbformat
from nbclient import NotebookClient
from traitlets.config import Config
notebook = nbformat.read(sys.argv[1], as_version=4)
place = {"metadata": {"path": sys.argv[2]}}
with tempfile.TemporaryDirectory() as sockets:  # a port that was free may be taken when the kernel gets to use it
    config = Config(KernelManager={"transport": "ipc", "ip": f"{sockets}/kernel"})
    limits = {"timeout": int(sys.argv[3]), "startup_timeout": int(sys.argv[3])}
    NotebookClient(notebook, kernel_name="python3", resources=place, config=config, **limits).execute()
print(sum(cell.cell_type == "code" for cell in notebook.cells), "cells")
"""


def execute(notebook: Path, scratch: Path) -> subprocess.CompletedProcess[str]:
    """Run a notebook with this Python, in an empty directory, in a separate process: Jupyter warns of itself."""
    work, kernels = scratch / "work", scratch / "jupyter"
    work.mkdir()
    # A kernel of that name that somebody has installed would be another Python.
    subprocess.run(
        [sys.executable, "-m", "ipykernel", "install", "--prefix", kernels, "--name", "python3"],
        check=True, capture_output=True,
    )  # fmt: skip
    own = {name: str(scratch / name) for name in ("JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "IPYTHONDIR")}
    environment = {"CUDA_VISIBLE_DEVICES": "", **os.environ, **own, "JUPYTER_PATH": str(kernels / "share" / "jupyter")}
    return subprocess.run(
        [sys.executable, "-c", EXECUTE, notebook, work, str(LIMIT_S)],
        env=environment, text=True, capture_output=True, check=False,
    )  # fmt: skip


@pytest.mark.skipif(bool(MISSING), reason=f"needs {', '.join(MISSING)}")
@pytest.mark.timeout(LIMIT_S + 60)
@pytest.mark.parametrize("name", NAMES)
def test_the_notebook_runs_and_leaves_nothing_behind(name: str, tmp_path: Path) -> None:
    done = execute(NOTEBOOKS / name, tmp_path)
    assert done.returncode == 0, done.stderr[-4000:]
    assert int(done.stdout.split()[0]) > 5
    assert list((tmp_path / "work").iterdir()) == []


@pytest.mark.skipif(bool(MISSING), reason=f"needs {', '.join(MISSING)}")
@pytest.mark.timeout(LIMIT_S + 60)
def test_a_cell_that_fails_is_a_failure(tmp_path: Path) -> None:
    broken = json.loads((NOTEBOOKS / NAMES[0]).read_text(encoding="utf-8"))
    cell = {"cell_type": "code", "id": "a", "metadata": {}, "outputs": [], "execution_count": None}
    broken["cells"] = [{**cell, "source": "assert 1 == 2"}]
    path = tmp_path / "broken.ipynb"
    path.write_text(json.dumps(broken), encoding="utf-8")
    done = execute(path, tmp_path)
    assert done.returncode != 0
    assert "AssertionError" in done.stderr


@pytest.mark.parametrize("name", [name for name in NAMES if name != EXECUTED])
def test_the_notebook_is_stored_without_outputs(name: str) -> None:
    document = json.loads((NOTEBOOKS / name).read_text(encoding="utf-8"))
    cells = [cell for cell in document["cells"] if cell["cell_type"] == "code"]
    assert cells
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells)


def test_the_executed_notebook_is_stored_with_its_numbers_and_two_pictures() -> None:
    path = NOTEBOOKS / EXECUTED
    assert path.stat().st_size < MAX_BYTES
    cells = [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert not [output for output in outputs if output["output_type"] == "error" or output.get("name") == "stderr"]
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 2
    text = "".join(line for output in outputs for line in output.get("text", ()))
    assert "Added 11 operations to the model (5 swap-out operations" in text
    assert "losses by distance:" in text


def test_each_model_has_a_section_with_its_configuration_and_each_network_is_named() -> None:
    cells = json.loads((NOTEBOOKS / "models.ipynb").read_text(encoding="utf-8"))["cells"]
    text = "".join("".join(cell["source"]) + "\n" for cell in cells)
    sections = dict(section.split("\n", 1) for section in text.split("\n## ")[1:])
    whole = [name for name in models.__all__ if name not in {"components", "networks"}]
    assert [name for name in whole if f'"ktf.models.{name}": {{' not in sections.get(name, "")] == []
    assert [name for name in models.networks.__all__ if f"networks.{name}" not in text] == []


def test_there_are_three_tutorials_and_one_notebook_of_the_models() -> None:
    assert NAMES == ["kill_resume_look_inside.ipynb", EXECUTED, "models.ipynb", "train_from_a_config.ipynb"]
