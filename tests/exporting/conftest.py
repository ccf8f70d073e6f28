"""Tests of conversions: each format written, read by its own library, and read back; on both stacks."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
TF_TESTS = {"test_round_trips", "test_models", "test_load_model", "test_stock_files", "test_code"}
HAS_KERAS = find_spec("tensorflow") is not None and find_spec("keras") is not None
sys.path.insert(0, str(HERE))

if HAS_KERAS:
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    with warnings.catch_warnings():  # TensorFlow's own, at import; what we do must not warn
        warnings.simplefilter("ignore")
        import keras  # noqa: F401 - so that the warnings are over
        import tensorflow as tf
    logging.getLogger("absl").setLevel(logging.ERROR)
    tf.get_logger().setLevel("ERROR")
else:
    collect_ignore = [f"{name}.py" for name in TF_TESTS]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is here: runs on both stacks."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.stack_b)
            item.add_marker(pytest.mark.filterwarnings("ignore::DeprecationWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::FutureWarning"))
            if item.path.stem in TF_TESTS:
                item.add_marker(pytest.mark.tf)


@pytest.fixture
def cli() -> Callable[..., Any]:
    """Run the command line in this process."""
    from click.testing import CliRunner

    from hpcckpt.cli.app import tool

    return lambda *words: CliRunner().invoke(tool, [str(word) for word in words])


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A run directory with step 7: weights, an optimizer, a narrow tensor, objects and metrics."""
    from converting import save_plain

    return save_plain(tmp_path / "run")


@pytest.fixture
def no_leftovers(tmp_path: Path) -> Iterator[None]:
    """Check that nothing temporary is left."""
    yield
    assert [path.name for path in tmp_path.rglob(".tmp-*")] == []
