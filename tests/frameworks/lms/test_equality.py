"""Losses and weights are the same to the bit, whatever leaves and comes back: oneDNN off, each way to train."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.mpi.launch import clean_environment

HERE = Path(__file__).parent
pytestmark = pytest.mark.timeout(900)  # one job trains for all of them
IS_STACK_A = sys.version_info < (3, 12) and __import__("tensorflow").__version__.startswith("2.15")
KERAS = ["sequential", "batchnorm", "dropout", "skip connections", "nested functions", "short last batch"]
SYNC_MODES = [f"session, sync_mode {mode}" for mode in (1, 2, 3)] if IS_STACK_A else []
"""Where sessions are used; how modes are planned is the same in any TensorFlow."""
CASES = ["session", *SYNC_MODES, *KERAS, "mixed precision", "own loop"]
COST = ["cost planner", "cost planner, batchnorm"]
FEW = ["session", "dropout"]
"""What is repeated with another hash seed; the cost planner goes by a bandwidth that is measured, on rank 0."""


def run(cases: Sequence[str], **env: str) -> dict[str, Any]:
    """Run the job, and return what it told."""
    environment = clean_environment(**env)
    done = subprocess.run(
        [sys.executable, str(HERE / "job_equality.py"), *cases],
        env=environment, capture_output=True, text=True, timeout=840, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    told: dict[str, Any] = json.loads(done.stdout.split("EQUALITY ", 1)[1].splitlines()[0])
    return told


@pytest.fixture(scope="module")
def told() -> dict[str, Any]:
    return run([*CASES, *COST, *(["estimator"] if IS_STACK_A else [])])


@pytest.mark.parametrize("case", [*CASES, *COST])
def test_losses_and_weights_are_equal_to_the_bit_with_and_without(told: dict[str, Any], case: str) -> None:
    assert told[case]["equal"]
    assert told[case]["swaps"] > 0
    assert told[case]["mode"] == ("graph" if case.startswith("session") else "pass")


@pytest.mark.skipif(not IS_STACK_A, reason="TensorFlow has no Estimators since 2.16")
def test_an_estimator_trains_to_the_same_checkpoint_names_and_values(told: dict[str, Any]) -> None:
    assert told["estimator"]["equal"]
    assert told["estimator"]["swaps"] > 0


def test_nothing_is_held_between_steps(told: dict[str, Any]) -> None:
    assert {case["live"] for case in told.values()} == {0}


def test_plans_do_not_depend_on_the_hash_seed(told: dict[str, Any]) -> None:
    again = run(FEW, PYTHONHASHSEED="7")
    assert {case: again[case]["digest"] for case in FEW} == {case: told[case]["digest"] for case in FEW}
