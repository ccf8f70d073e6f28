"""The examples of LMS: what `make examples` runs, and what ResNet50's says of sizes that go and do not."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from tests.support import examples
from tests.support.paths import ROOT

lms_resnet = examples.load("lms_resnet")

GOOD: dict[str, Any] = {
    "image_size": 64, "batch_size": 4, "lms": True, "ok": True, "step_s": 0.5, "megapixels_per_s": 0.0328,
    "peak_mib": 50.25, "swap_outs": 7, "swapped_mib": 40.0, "stalled_s": 0.01,
}  # fmt: skip
BAD = {"image_size": 96, "batch_size": 4, "lms": False, "ok": False, "why": "exit 1: MemoryError: std::bad_alloc"}


def test_make_examples_runs_every_example_of_lms() -> None:
    script = (ROOT / "scripts" / "dev" / "examples.sh").read_text(encoding="utf-8")
    names = sorted(path.stem for path in (ROOT / "examples").glob("lms_*.py"))
    assert len(names) == 5
    assert [name for name in names if f"examples/{name}.py" not in script] == []
    assert "scripts/dev/examples.sh" in (ROOT / "Makefile").read_text(encoding="utf-8")


def test_a_size_that_goes_is_told_with_its_figures() -> None:
    assert lms_resnet.words(GOOD) == (
        "64 x 64, batch 4, LMS on: 0.50 s a step, 0.033 MP/s, peak 50 MiB, 7 swap-outs of 40 MiB"
    )


def test_a_size_that_does_not_go_is_told_with_what_the_child_said() -> None:
    assert lms_resnet.words(BAD) == ("96 x 96, batch 4, LMS off: out of memory (exit 1: MemoryError: std::bad_alloc)")


def test_rows_are_appended_below_one_header(tmp_path: Path) -> None:
    path = tmp_path / "stats.csv"
    for row in (GOOD, BAD):
        lms_resnet.write(str(path), row)
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["ok"] for row in rows] == ["True", "False"]
    assert (rows[0]["peak_mib"], rows[1]["peak_mib"], rows[1]["why"]) == ("50.25", "", BAD["why"])


def test_the_clock_leaves_the_first_step_out_and_takes_the_median() -> None:
    clock = lms_resnet.Clock()
    clock.times = [10.0, 11.0, 13.0, 14.0]
    assert clock.step_s == pytest.approx(1.0)
    assert lms_resnet.Clock().step_s == 0.0
