"""``hpcckpt supervise --json``: what became of the job does not hang on whether that can be told."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.support.paths import ROOT

FOREIGN = ("SLURM_", "PBS_", "COBALT_", "OMPI_", "PMI", "PALS_", "HPCCKPT_")
LIMIT_S = 240.0


def supervise(*words: str, step_code: int) -> subprocess.CompletedProcess[str]:
    """Supervise a step that ends with a code, where the disk of standard output is full."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    step = [sys.executable, "-c", f"raise SystemExit({step_code})"]
    command = [sys.executable, "-m", "hpcckpt", "supervise", "--json", *words, "--", *step]
    with open("/dev/full", "wb") as full:
        return subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, cwd=ROOT, env=kept, timeout=LIMIT_S, check=False
        )


@pytest.mark.parametrize("code", [0, 7, 75])
def test_the_code_is_that_of_the_step_though_the_report_cannot_be_written(code: int) -> None:
    done = supervise(step_code=code)
    assert done.returncode == code, done.stderr
    assert "the report cannot be written" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_rehearsal_that_cannot_be_told_has_failed() -> None:
    assert supervise("--dry-run", step_code=0).returncode == 7
