"""``make gpu`` where it cannot run: it says what is not there, and ends with a code of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.paths import ROOT

NO_GPU, INCOMPLETE = 77, 2


def gpu(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the script with this Python, or the one that is named."""
    environ = {**os.environ, "HPCCKPT_PYTHON": sys.executable, **variables}
    command = [str(ROOT / "scripts" / "dev" / "gpu.sh"), *words]
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=False, cwd="/")


@pytest.mark.skipif(find_spec("torch") is None, reason="needs PyTorch")
@pytest.mark.skipif(Path("/dev/nvidia0").exists(), reason="there is a GPU")
def test_without_a_gpu_nothing_is_run_and_the_code_says_so() -> None:
    done = gpu()
    assert done.returncode == NO_GPU, done.stderr
    assert "no GPU: " in done.stderr
    assert "Nothing was run" in done.stderr
    assert done.stdout == ""


def test_what_is_needed_and_not_there_is_named(tmp_path: Path) -> None:
    bare = tmp_path / "python"  # as if no package were installed
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n', encoding="utf-8")
    bare.chmod(0o755)
    done = gpu(HPCCKPT_PYTHON=str(bare))
    assert done.returncode == INCOMPLETE, done.stderr
    assert "needed, and not there: torch numpy mpi4py" in done.stderr


@pytest.mark.nightly  # compiles the native part
@pytest.mark.skipif(find_spec("torch") is None, reason="needs PyTorch")
def test_a_dry_run_does_the_same_on_the_cpu() -> None:
    done = gpu("--dry-run", "--mib", "8", "--tensors", "4", "--repeat", "1")
    assert done.returncode == 0, done.stderr
    passed = re.search(r"^(\d+) passed, 0 failed, on cpu", done.stdout, re.MULTILINE)
    assert passed is not None
    assert int(passed[1]) >= 9
    assert "native part: native" in done.stdout
    assert "not run: pytest -m gpu: a dry run" in done.stderr
