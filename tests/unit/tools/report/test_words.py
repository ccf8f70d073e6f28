"""Words for programs that train nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import hpcckpt as hc
from hpcckpt.cli.app import tool


@pytest.fixture
def run(tmp_path: Path) -> Path:
    with hc.Checkpointer(tmp_path / "run") as ckpt:
        for step in range(1, 6):
            ckpt.save(step, {"u": np.full(10, step)}).result()
    return tmp_path / "run"


@pytest.mark.parametrize("words", [("info",), ("list",), ("watch", "--once"), ("verify",)])
def test_a_solver_s_run_is_described_without_words_of_training(run: Path, words: tuple[str, ...]) -> None:
    result = CliRunner().invoke(tool, [words[0], str(run), *words[1:]])
    assert result.exit_code == 0, result.output
    text = result.stdout + result.stderr
    assert not [word for word in ("training", "weights", "optimizer", "model") if word in text.lower()], text
