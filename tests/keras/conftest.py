"""Tests of the Keras shell: on Keras 2.15 and on Keras 3, one process, no GPU."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "examples"
sys.path[:0] = [str(HERE), str(EXAMPLES)]

if find_spec("tensorflow") is None or find_spec("keras") is None:
    collect_ignore_glob = ["test_*.py"]
else:
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    with warnings.catch_warnings():  # TensorFlow's own, at import; what we do must not warn
        warnings.simplefilter("ignore")
        import keras
        import tensorflow as tf  # noqa: F401 - so that the warnings are over


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is here: needs TensorFlow, runs on both stacks."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.tf)
            item.add_marker(pytest.mark.stack_b)
            item.add_marker(pytest.mark.filterwarnings("ignore::DeprecationWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::FutureWarning"))


@pytest.fixture
def keras_2() -> None:
    """Skip on Keras 3: the test is about what only Keras 2.15 has."""
    if keras.__version__.startswith("3"):
        pytest.skip("Keras 2.15 only")


@pytest.fixture
def fit() -> Callable[..., Any]:
    """Train a model on given rows, in order and silently: ``fit(model, rows, epochs, *callbacks)``."""

    def run(model: Any, rows: Any, epochs: int, *callbacks: Any, **more: Any) -> Any:
        data = {"x": rows[0], "y": rows[1], "batch_size": 5, "shuffle": False}
        return model.fit(**data, epochs=epochs, callbacks=list(callbacks), verbose=0, **more)

    return run
