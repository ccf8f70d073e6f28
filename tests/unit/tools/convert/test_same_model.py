"""A converted file is the same model in a fresh process: if compiled it evaluates equally, else it predicts equally."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import hpcckpt as hc
from tests.support.convert import kinds_of_models
from tests.support.convert.kinds_of_models import COMPILED
from tests.support.programs import environment

FORMATS = {
    "keras": "model.keras", "h5": "model.h5", "saved-model": "saved", "weights.h5": "model.weights.h5",
    "tf": "cp.ckpt", "npz": "model.npz", "safetensors": "model.safetensors", "pt": "model.pt",
}  # fmt: skip
HAS_TORCH = importlib.util.find_spec("torch") is not None
CASES = [(each, kind, done) for each in FORMATS for kind in COMPILED for done in (True, False)]


def file_name(file_format: str, kind: str, *, is_compiled: bool) -> str:
    return f"{kind}-{'compiled' if is_compiled else 'bare'}-{FORMATS[file_format]}"


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Convert models of each kind to each format, and return what they and the files evaluate to and predict."""
    directory = tmp_path_factory.mktemp("files")
    files, predicted, evaluated = {}, {}, {}
    for kind in COMPILED:
        for is_compiled in (True, False):
            model = kinds_of_models.build(kind, is_compiled=is_compiled)
            run = directory / f"run-{kind}-{is_compiled}"
            if is_compiled:
                model.fit(kinds_of_models.X, kinds_of_models.LABELS[kind], batch_size=16, verbose=0)
            with hc.Checkpointer(run, async_save=False) as ckpt:
                ckpt.save(1, {"model": model}, objects=hc.keras.describe(model))
            for file_format in FORMATS:
                if file_format == "pt" and not HAS_TORCH:
                    continue
                name = file_name(file_format, kind, is_compiled=is_compiled)
                hc.export_checkpoint(run, directory / name, to=file_format)
                files[name] = file_format, kind, is_compiled
                predicted[name] = kinds_of_models.predicted(model)
                evaluated[name] = kinds_of_models.evaluated(model, kind) if is_compiled else {}
    (directory / "files.json").write_text(json.dumps(files))
    program = Path(__file__).with_name("open_files.py")
    command = [sys.executable, "-c", _RUN, str(program), str(directory)]
    done = subprocess.run(command, env=environment(), check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    with np.load(directory / "results.npz") as arrays:
        found = dict(arrays)
    there = json.loads((directory / "results.json").read_text())
    return {"here": (predicted, evaluated), "there": (found, there)}


_RUN = "import sys, runpy; del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')"


@pytest.mark.slow
@pytest.mark.parametrize(("file_format", "kind", "is_compiled"), CASES)
def test_every_format_keeps_what_the_model_is(file_format: str, kind: str, is_compiled: bool, results: Any) -> None:
    if file_format == "pt" and not HAS_TORCH:
        pytest.skip("PyTorch is not installed")
    name = file_name(file_format, kind, is_compiled=is_compiled)
    (predicted, evaluated), (found, there) = results["here"], results["there"]
    assert name in found, there.get(name)
    if is_compiled and name in there:
        assert there[name] == pytest.approx(evaluated[name], rel=0, abs=1e-6)
    else:
        assert found[name].tobytes() == predicted[name].tobytes()


@pytest.mark.parametrize("kind", ["classification", "multi-output"])
def test_accuracy_is_the_same_metric_in_an_h5(kind: str, tmp_path: Path) -> None:
    model = kinds_of_models.build(kind, is_compiled=True)
    with hc.Checkpointer(tmp_path / "run", async_save=False) as ckpt:
        ckpt.save(1, {"model": model}, objects=hc.keras.describe(model))
    hc.export_checkpoint(tmp_path / "run", tmp_path / "model.h5")
    found = kinds_of_models.evaluated(keras.models.load_model(tmp_path / "model.h5"), kind)
    assert found == pytest.approx(kinds_of_models.evaluated(model, kind), rel=0, abs=1e-6)
