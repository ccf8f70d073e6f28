"""Tests of the PyTorch shell: where PyTorch is installed, on CPU."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

HERE = Path(__file__).parent

if find_spec("torch") is None:
    collect_ignore_glob = ["test_*.py"]
else:
    import torch

    torch.set_num_threads(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is here: needs PyTorch."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.torch)
