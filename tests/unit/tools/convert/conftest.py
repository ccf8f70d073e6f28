"""Tests of conversions: each format written, read by its own library, and read back; on both stacks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import frameworks

HERE = Path(__file__).parent
TF_TESTS = {"test_round_trips", "test_models", "test_load_model", "test_stock_files", "test_code", "test_same_model"}

if not frameworks.import_tensorflow():
    collect_ignore = [f"{name}.py" for name in TF_TESTS]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is here: runs on both stacks."""
    frameworks.mark(items, HERE, "stack_b")
    frameworks.mark([item for item in items if item.path.stem in TF_TESTS], HERE, "tf")


@pytest.fixture(autouse=True)
def frameworks_do_not_chatter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keras and TensorFlow log what they think of old formats; here that is what is tested."""
    for name in ("absl", "tensorflow"):
        monkeypatch.setattr(logging.getLogger(name), "disabled", True)


@pytest.fixture
def cli() -> Callable[..., Any]:
    """Run the command line in this process."""
    from click.testing import CliRunner

    from hpcckpt.cli.app import tool

    return lambda *words: CliRunner().invoke(tool, [str(word) for word in words])


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A run directory with step 7: weights, an optimizer, a narrow tensor, objects and metrics."""
    from tests.support.convert.converting import save_plain

    return save_plain(tmp_path / "run")


@pytest.fixture
def no_leftovers(tmp_path: Path) -> Iterator[None]:
    """Check that nothing temporary is left."""
    yield
    assert [path.name for path in tmp_path.rglob(".tmp-*")] == []
