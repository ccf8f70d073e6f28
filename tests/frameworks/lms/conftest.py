"""Tests of Large Model Support: on both stacks, no GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import frameworks

HAS_TENSORFLOW = frameworks.import_tensorflow()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is here: needs TensorFlow, runs on both stacks."""
    frameworks.mark(items, Path(__file__).parent, "tf", "stack_b")
