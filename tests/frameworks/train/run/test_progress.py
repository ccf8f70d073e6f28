"""What a person sees of a training: a bar on a terminal, lines elsewhere, each message once."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hpcckpt.train.callbacks import progress
from tests.support.programs import environment
from tests.support.train import pieces
from tests.support.train.launch import ENV, HERE


def test_without_a_terminal_there_is_a_line_for_each_epoch(run: Any, capfd: pytest.CaptureFixture[str]) -> None:
    run(pieces.config(), verbose=1)
    lines = [line for line in capfd.readouterr().err.splitlines() if " epoch=" in line and "seconds=" in line]
    assert len(lines) == 2
    pattern = r"hpcckpt: cycle=1/1 epoch=2/2 seconds=[\d.]+ loss=\S+ mae=\S+ val_loss=\S+ val_mae=\S+"
    assert re.fullmatch(pattern, lines[1])


def test_a_long_epoch_has_lines_within(run: Any, capfd: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.setattr(progress.Lines, "every_s", 0.0)
    run(pieces.config(), verbose=1)
    lines = [line for line in capfd.readouterr().err.splitlines() if "batch=" in line and "cycle=" in line]
    assert re.match(r"hpcckpt: cycle=1/1 epoch=1/2 batch=1/8 batches/s=[\d.]+ loss=", lines[0])
    assert len(lines) == 16


def test_each_step_and_the_end_are_told_once(run: Any, capfd: pytest.CaptureFixture[str]) -> None:
    run(pieces.config(), verbose=1)
    text = capfd.readouterr().err
    assert [text.count(f"saved step={step} ") for step in (3, 6, 8, 9, 12, 15, 16)] == [1] * 7
    assert text.count("complete epochs=2 step=16") == 1


def test_verbose_0_says_nothing(run: Any, capfd: pytest.CaptureFixture[str]) -> None:
    run(pieces.config(), verbose=0)
    assert "hpcckpt" not in capfd.readouterr().err


def _on_a_terminal(run: Path, columns: int) -> str:
    """Train on a terminal; return what it shows."""
    pexpect = pytest.importorskip("pexpect")
    env = environment(**ENV, TERM="xterm", COLUMNS=str(columns))
    env.pop("NO_COLOR", None)
    config = pieces.config(train_loop=pieces.loop(epochs=2, callbacks=[{"Pause": {"seconds": 0.08}}]))
    words = [str(HERE / "trainjob.py"), json.dumps([{"run": str(run), "config": config}])]
    child = pexpect.spawn(sys.executable, words, env=env, encoding="utf-8", timeout=600, dimensions=(40, columns))
    text = child.read()
    child.wait()
    assert child.exitstatus == 0, text
    return text


@pytest.mark.timeout(900)
def test_on_a_terminal_there_is_a_bar_with_the_state_of_the_checkpoints(tmp_path: Path) -> None:
    text = _on_a_terminal(tmp_path / "run", 200)
    assert re.search(r"cycle=1/1 epoch=2/2 .*[1-8]/8", text)
    assert re.search(r"saved step \d+ \d+ s ago \([\d.]+ KiB\)", text)
    assert "validating" in text
    assert "saved step=" not in text
    assert text.count("complete epochs=2 step=16") == 1


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_bar_and_lines_fit_a_terminal_of_80_columns(tmp_path: Path) -> None:
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", _on_a_terminal(tmp_path / "run", 80))
    rows = [row for row in re.split(r"[\r\n]+", text) if not row.startswith(("TOLD", "WARNING", "20"))]
    ours = [row for row in rows if re.search(r"hpcckpt:|epoch=|loss=|saved step", row) and "WARNING" not in row]
    assert any(re.fullmatch(r"  (saving, )?saved step \d+ \d+ s ago \([\d.]+ KiB\)", row.rstrip()) for row in ours)
    assert any(re.search(r"cycle=1/1 epoch=2/2 \S+ [1-8]/8 [\d:-]+", row) for row in ours)
    assert [row for row in ours if len(row.rstrip()) > 80 or "…" in row] == []


@pytest.mark.parametrize(
    "make", ["train.callbacks.progress import _bars; _bars(list)", "keras.data.skip_progress import Skipping; show()"]
)
def test_a_bar_draws_nothing_of_the_stream_that_programs_share(make: str) -> None:
    code = (
        "import random, sys\n"
        "sys.stderr.isatty = lambda: True\n"
        "def show():\n"
        "    assert list(Skipping(is_shown=True).over(range(3), 3)) == [0, 1, 2]\n"
        "random.seed(7)\n"
        "before = random.getstate()\n"
        f"from hpcckpt.{make}\n"
        "assert 'rich.progress' in sys.modules\n"
        "assert random.getstate() == before\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
