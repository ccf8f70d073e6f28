"""The program in docs/numpy.md prints what the page shows, and resumes to the same bits."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import hpcckpt as hc
from tests.support.mpi.launch import mpirun
from tests.support.paths import ROOT

PAGE = ROOT / "docs" / "numpy.md"


def block(language: str) -> str:
    found = re.search(rf"^```{language}\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert found is not None
    return found[1]


@pytest.mark.slow
def test_the_program_prints_what_the_page_shows_and_resumes_to_the_same_bits(tmp_path: Path) -> None:
    (program := tmp_path / "heat.py").write_text(block("python"), encoding="utf-8")
    run, straight = tmp_path / "heat", tmp_path / "straight"
    lines = block("console").splitlines()
    commands = [line for line in lines if line.startswith("$ ")]
    shown = [line for line in lines if not line.startswith("$ ")]
    printed = []
    for command in commands:
        (n_ranks, n_steps) = re.findall(r" (\d+)\b", command)
        ended = mpirun(int(n_ranks), str(program), str(run), n_steps)
        assert ended.code == 0, ended.err
        printed += [line for line in ended.err.splitlines() if line.startswith("hpcckpt: ")] + ended.out.splitlines()
    assert printed == shown
    assert mpirun(1, str(program), str(straight), "60").code == 0
    assert hc.load(run)["u"].tobytes() == hc.load(straight)["u"].tobytes()
