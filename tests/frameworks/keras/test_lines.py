"""The lines about checkpoints beside Keras' progress bar: on a terminal, in a log, and what they say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from hpcckpt.core.results import Restored, SavedStep
from hpcckpt.keras import BackupAndRestore, log_lines
from hpcckpt.keras.callbacks import reproducibility
from tests.support import programs
from tests.support.keras.models import small

HERE = Path(__file__).parent
LIMIT_S = 300
SAVED = SavedStep(250, Path("run/step-0000000250"), 47872, 1, 0.058, 0.009, 3, "rankfile")
RESTORED = Restored(12, {}, {}, (), Path("run/step-0000000012"), 1, "exact", 100, 0.1)


def environment(**variables: str) -> dict[str, str]:
    env = programs.environment(CUDA_VISIBLE_DEVICES="", PYTHONWARNINGS="ignore") | variables
    env.pop("COLUMNS", None)
    return env


# -- where they are written ------------------------------------------------------------------------


@pytest.mark.slow
def test_on_a_terminal_no_line_is_appended_to_the_bar_of_keras(tmp_path: Path) -> None:
    pexpect = pytest.importorskip("pexpect")
    words = [str(HERE / "job_bar.py"), str(tmp_path)]
    env = environment(TERM="xterm")
    child = pexpect.spawn(sys.executable, words, env=env, encoding="utf-8", timeout=LIMIT_S, dimensions=(40, 80))
    text = child.read()
    child.wait()
    assert child.exitstatus == 0, text
    before = re.findall(r"(?s)(.{0,4})hpcckpt: ", text)
    assert all(each.endswith(("\n", "\r\x1b[K")) for each in before), text
    assert any(each.endswith("\r\x1b[K") for each in before), text
    assert re.search(r"hpcckpt: saved step 3 \(epoch 0\): [\d.]+ KiB in [\d.]+ s\r\n", text)
    assert "bw=" not in text
    assert len(re.findall(r"12/12.* - loss: [^\r\n]*\r\n", text)) == 2  # the bar of each epoch, at its end


@pytest.mark.slow
def test_in_a_log_each_line_begins_a_line_of_the_log(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w+b") as log:
        command = [sys.executable, str(HERE / "job_bar.py"), str(tmp_path)]
        subprocess.run(command, stdout=log, stderr=log, env=environment(), timeout=LIMIT_S, check=True)
        log.seek(0)
        rows = log.read().decode().splitlines()
    ours = [row for row in rows if "hpcckpt: " in row]
    assert len(ours) >= 8
    assert [row for row in ours if not row.startswith("hpcckpt: ")] == []
    assert [row for row in ours if "loss:" in row] == []


@pytest.mark.slow
def test_a_file_with_standard_output_alone_gets_no_line_more(tmp_path: Path) -> None:
    command = [sys.executable, str(HERE / "job_bar.py"), str(tmp_path)]
    with (tmp_path / "out").open("wb") as out:
        subprocess.run(command, stdout=out, stderr=subprocess.PIPE, env=environment(), timeout=LIMIT_S, check=True)
    rows = (tmp_path / "out").read_text(encoding="utf-8").splitlines()
    assert "hpcckpt" not in "".join(rows)
    blank = [i for i, row in enumerate(rows) if not row.strip()]
    assert [i for i in blank if not rows[i - 1].startswith("Epoch")] == []  # Keras begins a bar in a file with one


# -- what they say ---------------------------------------------------------------------------------


def test_lines_are_short_on_a_terminal_and_complete_in_a_log(monkeypatch: Any) -> None:
    def both() -> tuple[str, str, str]:
        (level,) = log_lines.level_lines("exact", [], "saved", "")
        return log_lines.saved_line(SAVED, 1), log_lines.resume_line(RESTORED, 1, 2, 1, "exact", "exact"), level

    monkeypatch.setattr(log_lines, "is_terminal", lambda: True)
    assert both() == (
        "hpcckpt: saved step 250 (epoch 1): 46.75 KiB in 0.06 s",
        "hpcckpt: resume at epoch 1, batch 2, level exact, from run/step-0000000012",
        "hpcckpt: a resume will be at level exact",
    )
    monkeypatch.setattr(log_lines, "is_terminal", lambda: False)
    saved, resume, level = both()
    assert saved.startswith("hpcckpt: saved step=250 epoch=1 bytes=46.75KiB stall=0.009s total=0.058s bw=")
    assert saved.endswith(" backend=rankfile files=1 kept=3")
    assert resume.startswith("hpcckpt: resume step=12 epoch=1 batch=2 from=run/step-0000000012 ranks 1->1 level=exact ")
    assert resume.endswith(" iterator=exact missing=0 unexpected=0")
    assert level == "hpcckpt: next resume level=exact iterator=saved"


@pytest.mark.parametrize(
    ("reason", "remedy"),
    [
        ("no seed was set", "call hpcckpt.enable_exact_resume(seed=1) before the model is built"),
        ("batch_norm='mean' makes the statistics of all ranks equal", "pass batch_norm='per-rank'"),
        ("run_eagerly runs the program's Python", "see 'What exact needs' in docs/keras.md"),
    ],
)
def test_a_line_with_level_state_names_what_to_do(reason: str, remedy: str) -> None:
    (line,) = log_lines.level_lines("state", [reason], "saved", reproducibility.remedy([reason]))
    assert line == f"hpcckpt: next resume level=state iterator=saved because {reason}; for level=exact {remedy}"


def test_each_of_several_reasons_has_a_line() -> None:
    assert log_lines.level_lines("state", ["no seed was set", "run_eagerly is set"], "saved", "set a seed") == [
        "hpcckpt: next resume level=state iterator=saved for 2 reasons; for level=exact set a seed",
        "hpcckpt: level=state, reason 1 of 2: no seed was set",
        "hpcckpt: level=state, reason 2 of 2: run_eagerly is set",
    ]


def test_a_step_that_a_shuffle_buffer_enlarges_is_reported_once_with_sizes(tmp_path: Path, capfd: Any) -> None:
    rows = np.ones((4000, 4), "float32"), np.ones((4000, 1), "float32")
    data = tf.data.Dataset.from_tensor_slices(rows).shuffle(4000, seed=1).batch(500)
    callback = BackupAndRestore(tmp_path / "run", every_n_batches=3)
    small().fit(data, epochs=3, verbose=0, shuffle=False, callbacks=[callback])
    number = r"[1-9][\d.]* (?:KiB|MiB)"
    line = rf"hpcckpt: exact resume makes each step {number}, not {number}: {number} are the position in the data"
    assert len(re.findall(line, capfd.readouterr().err)) == 1


def test_a_line_about_one_rank_has_one_rank() -> None:
    assert (
        log_lines.equal_line(3, "restored", 1) == "hpcckpt: 3 tensors restored, equal on 1 rank before the first batch"
    )
    assert log_lines.equal_line(3, "broadcast", 2).endswith("equal on 2 ranks before the first batch")
