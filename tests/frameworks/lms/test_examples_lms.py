"""The examples of LMS: what `make examples` runs, what the large one prints of sizes that fit or not, its networks."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support import examples
from tests.support.paths import ROOT

lms_large = examples.load("lms_large")
large_models = examples.load("large_models")

GOOD: dict[str, Any] = {
    "network": "ResNet50", "recompute_grad": False, "image_size": 64, "batch_size": 4, "lms": True, "ok": True,
    "step_s": 0.5, "megapixels_per_s": 0.0328, "peak_mib": 50.25, "swap_outs": 7, "swapped_mib": 40.0, "stalled_s": 0.01,
}  # fmt: skip
BAD = GOOD | {
    "network": "unet3d", "recompute_grad": True, "image_size": 96, "lms": False, "ok": False,
    "why": "exit 1: MemoryError: std::bad_alloc",
}  # fmt: skip
FIGURES = ("step_s", "megapixels_per_s", "peak_mib", "swap_outs", "swapped_mib", "stalled_s")
BAD = {name: value for name, value in BAD.items() if name not in FIGURES}


def test_make_examples_runs_every_example_of_lms() -> None:
    script = (ROOT / "scripts" / "dev" / "examples.sh").read_text(encoding="utf-8")
    names = sorted(path.stem for path in (ROOT / "examples").glob("lms_*.py"))
    assert len(names) == 5
    assert [name for name in names if f"examples/{name}.py" not in script] == []
    assert "scripts/dev/examples.sh" in (ROOT / "Makefile").read_text(encoding="utf-8")


def test_a_size_that_goes_is_told_with_its_figures() -> None:
    assert lms_large.words(GOOD) == (
        "ResNet50, 64 x 64, batch 4, LMS on: 0.50 s a step, 0.033 MP/s, peak 50 MiB, 7 swap-outs of 40 MiB"
    )


def test_a_size_that_does_not_go_is_told_with_what_the_child_said() -> None:
    assert lms_large.words(BAD) == (
        "unet3d, 96 x 96 x 96, batch 4, LMS off, tf.recompute_grad: out of memory (exit 1: MemoryError: std::bad_alloc)"
    )
    assert ": FAILED (exit 1: ValueError: no)" in lms_large.words(BAD | {"why": lms_large.cause(1, "ValueError: no\n")})
    assert ": out of memory (exit -9: no message)" in lms_large.words(BAD | {"why": lms_large.cause(-9, "")})


def test_the_options_of_the_original_reach_lms() -> None:
    levels = ["--serialization", "1", "3:5", "--serialization-by-size", "0.5"]
    given = ["--swapout-threshold", "-1", "--sync-mode", "3", *levels]
    settings = lms_large.lms_of(lms_large.arguments(given)).settings
    assert (settings.swapout_threshold, settings.sync_mode, settings.planner) == (-1, 3, "distance")
    assert (settings.serialization, settings.serialization_by_size) == ((1, "3:5"), 0.5)
    assert lms_large.lms_of(lms_large.arguments([])).settings.planner == "cost"


def test_a_network_that_is_computed_again_has_the_same_losses() -> None:
    losses = []
    for recompute in ([], ["--recompute-grad"]):
        small = ["--network", "unet3d", "--image-size", "8", "--depth", "1", "--filters", "4", "--batch-size", "2"]
        model, (x, y) = lms_large.model_and_batch(lms_large.arguments([*small, *recompute]))
        losses.append([model.train_on_batch(x, y) for _ in range(3)])
        assert sum(layer.__class__.__name__ == "Recomputed" for layer in model.layers) == (3 if recompute else 0)
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)


def test_a_network_of_keras_is_cut_into_parts_that_compute_the_same() -> None:
    model = large_models.build("MobileNet", 32)
    parts = large_models.recomputed(model)
    assert sum(layer.__class__.__name__ == "Recomputed" for layer in parts.layers) > 5
    x = np.random.default_rng(0).standard_normal((2, 32, 32, 3), np.float32)
    assert np.array_equal(parts(x, training=False), model(x, training=False))
    assert len(parts.trainable_weights) == len(model.trainable_weights)


def test_the_largest_tensors_of_a_step_are_listed_without_running_it() -> None:
    small = ["--network", "unet3d", "--image-size", "16", "--depth", "1", "--filters", "4", "--batch-size", "2"]
    found = lms_large.trace(lms_large.arguments([*small, "--largest", "3"]))
    sizes = [nbytes for nbytes, *_ in found["tensors"]]
    assert len(sizes) == 3
    assert sizes[0] == 2 * 16**3 * 8 * 4  # the concatenated halves: 8 channels of float32
    assert sizes == sorted(sizes, reverse=True)
    assert sum(sizes) < found["nbytes"]


def test_rows_are_appended_below_one_header(tmp_path: Path) -> None:
    path = tmp_path / "stats.csv"
    for row in (GOOD, BAD):
        lms_large.write(str(path), row)
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["ok"] for row in rows] == ["True", "False"]
    assert (rows[0]["peak_mib"], rows[1]["peak_mib"], rows[1]["why"]) == ("50.25", "", BAD["why"])


def test_the_clock_leaves_the_first_step_out_and_takes_the_median() -> None:
    clock = lms_large.Clock()
    clock.times = [10.0, 11.0, 13.0, 14.0]
    assert clock.step_s == pytest.approx(1.0)
    assert lms_large.Clock().step_s == 0.0
