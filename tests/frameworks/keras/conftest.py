"""Tests of the Keras shell: on Keras 2.15 and on Keras 3, one process, no GPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import frameworks

if not frameworks.import_tensorflow():
    collect_ignore_glob = ["test_*.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is here: needs TensorFlow, runs on both stacks."""
    frameworks.mark(items, Path(__file__).parent, "tf", "stack_b")


@pytest.fixture
def keras_2() -> None:
    """Skip on Keras 3: the test is about what only Keras 2.15 has."""
    import keras

    if keras.__version__.startswith("3"):
        pytest.skip("Keras 2.15 only")


@pytest.fixture
def fit() -> Callable[..., Any]:
    """Train a model on given rows, in order and silently: ``fit(model, rows, epochs, *callbacks)``."""

    def run(model: Any, rows: Any, epochs: int, *callbacks: Any, **more: Any) -> Any:
        data = {"x": rows[0], "y": rows[1], "batch_size": 5, "shuffle": False}
        return model.fit(**data, epochs=epochs, callbacks=list(callbacks), verbose=0, **more)

    return run
