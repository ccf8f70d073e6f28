"""Tests of the TensorFlow shell: on both stacks, on CPU."""

from __future__ import annotations

import os
import sys
import warnings
from importlib.util import find_spec
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "examples"), str(HERE.parent / "mpi")]

if find_spec("tensorflow") is None:
    collect_ignore_glob = ["test_*.py"]
else:
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    with warnings.catch_warnings():  # TensorFlow's own, at import; what we do must not warn
        warnings.simplefilter("ignore")
        import keras  # noqa: F401
        import tensorflow as tf  # noqa: F401 - so that the warnings are over


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is here: needs TensorFlow, runs on both stacks."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.tf)
            item.add_marker(pytest.mark.stack_b)
            item.add_marker(pytest.mark.filterwarnings("ignore::DeprecationWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::FutureWarning"))
