"""``examples/tutorial.py`` trains and saves; ``examples/restore.py`` restores and shows what it has saved."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest

import hpcckpt as hc
from tests.support import examples

restore = examples.load("restore")
tutorial = examples.load("tutorial")


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """A small file in the format of MNIST."""
    rng = np.random.default_rng(1)
    arrays = {
        f"{name}_{part}": rng.integers(0, high, (256, *shape), dtype=np.uint8)
        for part in ("train", "test")
        for name, high, shape in (("x", 255, (28, 28)), ("y", 10, ()))
    }
    np.savez(tmp_path / "mnist.npz", **arrays)
    return tmp_path / "mnist.npz"


def run(module: object, monkeypatch: pytest.MonkeyPatch, *words: object) -> None:
    """Run the main function of an example with these words on its command line."""
    monkeypatch.setattr(sys, "argv", ["example", *map(str, words)])
    module.main()  # type: ignore[attr-defined]


@pytest.mark.parametrize("words", [(), ("--format", "tf")])
def test_each_checkpoint_of_a_training_is_restored_with_the_accuracy_that_was_saved(
    words: tuple[str, ...], images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    directory = tmp_path / "training"
    run(tutorial, monkeypatch, "--directory", directory, "--data", images, "--epochs", 2, *words)
    trained = capsys.readouterr().out
    saved = [
        *zip(*(map(float, re.findall(rf"val_{name}: ([\d.]+)", trained)) for name in ("loss", "accuracy")), strict=True)
    ]
    run(restore, monkeypatch, directory, "--data", images)
    out = capsys.readouterr().out
    restored = re.findall(r"^cp-(\d+)\.ckpt: loss=([\d.]+) accuracy=([\d.]+)$", out, re.MULTILINE)
    assert [number for number, *_ in restored] == ["0001", "0002"]
    found = [(float(loss), float(accuracy)) for _, loss, accuracy in restored]
    assert np.allclose(found, saved, rtol=0, atol=2e-4)
    assert f"latest: {directory}/" in out
    if not words:
        assert "model/dense/kernel float32 (784, 64)" in out
        assert f"latest: {hc.latest_checkpoint(directory)}" in out
