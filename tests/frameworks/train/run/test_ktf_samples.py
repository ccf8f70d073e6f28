"""The simple sample of ktf's document trains as it is written, offline; `functional/ktf_samples.py` runs both."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hpcckpt as hc
from hpcckpt.train.datasets.digits import affnist

SIMPLE = Path(__file__).parents[1] / "config" / "seeds" / "simple.json"


def test_the_simple_sample_trains_as_it_is_on_images_that_are_said_to_be_generated(
    run: Callable[..., list[Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("sklearn")
    monkeypatch.chdir(tmp_path)
    affnist.convert("data/affnist", 1, n_images=128, originals="digits")
    capsys.readouterr()
    (history,) = run(SIMPLE)
    assert "the 128 training images in data/affnist are generated from scikit-learn's digits" in capsys.readouterr().err
    assert list(history.history) == ["loss", "val_loss"]
    info = hc.info(tmp_path / "run" / "cycle-1")
    assert info.step == 2
