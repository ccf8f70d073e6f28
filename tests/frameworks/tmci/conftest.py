"""Tests of TMCI's interface and of the TensorFlow ops behind it: on Keras 2.15 and on Keras 3, one process, no GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
def ops() -> Any:
    """The library of ops; where nothing native is built there is nothing to test."""
    from hpcckpt.native import tf_ops

    found = tf_ops.loaded_if_built()
    if found is None:
        pytest.skip("the TensorFlow ops are not built")
    return found


@pytest.fixture
def make_spy(ops: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Plugins that remember their calls: ``make_spy(name, features)``."""
    from hpcckpt.native import plugins
    from hpcckpt.tmci import calls
    from tests.support.spy import Spy

    def make(name: str = "spy", features: int = 0) -> Spy:
        spy = Spy(name, features)
        monkeypatch.setitem(plugins._by_name, name, spy.backend)
        return spy

    yield make
    calls.close_all()


@pytest.fixture
def spy(make_spy: Callable[..., Any]) -> Any:
    """A plugin like those that were made for TMCI: it has the order of the tensors to go by."""
    return make_spy()


@pytest.fixture
def store(make_spy: Callable[..., Any]) -> Any:
    """A plugin that finds tensors by their names."""
    return make_spy("store", features=1)
