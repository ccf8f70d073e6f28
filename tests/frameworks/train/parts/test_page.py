"""The page that says how to add a data set, a model, a loss: its program is run unchanged."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcckpt.train.datasets import share, sharing
from tests.support.paths import ROOT

PAGE = ROOT / "docs" / "train-parts.md"


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The program of the page, in a file."""
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 7
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "bars.py"
    path.write_text("\n\n".join(blocks), encoding="utf-8")
    return path


@pytest.mark.slow
def test_the_program_of_the_page_trains_both_cycles(program: Path) -> None:
    told = "\nprint('ACCURACY', histories[-1].history['val_accuracy'][-1], len(histories))\n"
    program.write_text(program.read_text(encoding="utf-8").rstrip() + "\n    " + told.strip() + "\n", encoding="utf-8")
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("ACCURACY")]
    _, accuracy, n_cycles = line.split()
    assert (float(accuracy) > 0.9, n_cycles) == (True, "2")
    assert (program.parent / "bars" / "index.json").is_file()


def test_its_model_and_loss_are_what_keras_can_save(program: Path) -> None:
    things: dict[str, Any] = {"__name__": "page"}
    exec(compile(program.read_text(encoding="utf-8"), program, "exec"), things)
    import keras

    base = keras.Sequential([keras.layers.Input((16, 16, 1)), keras.layers.Flatten()])
    model = things["DeepHead"](2, base)
    again = things["DeepHead"].from_config(model.get_config())
    images = np.zeros((1, 16, 16, 1), np.float32)
    assert model(images).shape == again(images).shape == (1, 2)
    assert [w.shape for w in again.weights] == [w.shape for w in model.weights]
    loss = keras.losses.deserialize(keras.losses.serialize(things["Focal"](gamma=0.0)))
    logits, labels = np.array([[2.0, 0.0], [0.0, 1.0]], np.float32), np.array([0, 0])
    plain = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    assert float(loss(labels, logits)) == pytest.approx(float(plain(labels, logits)), rel=1e-5)
    with sharing(1, 2):
        assert share() == (1, 2)
        plain, plain_valid = things["plain_bars"](batch_size=50)
        train, valid = things["bars"](batch_size=20)
        twice, _ = things["mirrored"]((train, valid))
    assert (int(train.cardinality()), train.element_spec[0].shape) == (12, (20, 16, 16, 1))
    assert [len(labels) for _, labels in plain] == [50] * 5
    assert sum(len(labels) for _, labels in plain_valid) == 30
    assert (int(twice.cardinality()), twice.element_spec[0].shape) == (12, (40, 16, 16, 1))
    assert sum(len(labels) for _, labels in valid) == 60
