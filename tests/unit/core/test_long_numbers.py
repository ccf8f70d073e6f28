"""Numbers as people and files write them: with many zeros, with very many digits, or none."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcckpt.errors import OptionError, StepNotFoundError
from hpcckpt.format import layout
from hpcckpt.preemption.halt import Halt, parse_halt
from hpcckpt.rundir import discovery


@pytest.mark.parametrize(
    ("number", "step"), [("12345", 12345), ("0" * 30 + "12345", 12345), (str(layout.MAX_STEP), layout.MAX_STEP)]
)
def test_a_job_is_halted_behind_the_step_that_is_written(number: str, step: int) -> None:
    assert parse_halt(f"after-step {number}") == Halt(after_step=step)


@pytest.mark.parametrize("number", [str(layout.MAX_STEP + 1), "9" * 5_000, "-1", "1.5", "1e3", "٣"])
def test_a_step_that_no_run_has_halts_nobody(number: str) -> None:
    with pytest.raises(OptionError, match="not understood"):
        parse_halt(f"after-step {number}")


@pytest.mark.parametrize("which", ["9" * 5_000, "9" * 99, "-1", -1, "1.5", "²"])
def test_a_step_that_no_run_has_is_not_found(which: str | int, tmp_path: Path) -> None:
    with pytest.raises(StepNotFoundError) as caught:
        discovery.find_step(tmp_path, which)
    assert len(str(caught.value)) < 400
