"""Tests of the TensorFlow shell: on both stacks, on CPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import frameworks

if not frameworks.import_tensorflow():
    collect_ignore_glob = ["test_*.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is here: needs TensorFlow, runs on both stacks."""
    frameworks.mark(items, Path(__file__).parent, "tf", "stack_b")
