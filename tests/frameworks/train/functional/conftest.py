"""Functional tests: scripts that run by themselves, and the runner that pytest calls."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import frameworks


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is here: needs TensorFlow, and takes its time."""
    frameworks.mark(items, Path(__file__).parent, "tf", "slow")
