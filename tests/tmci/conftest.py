"""Tests of TMCI's interface and of the TensorFlow ops behind it: on Keras 2.15 and on Keras 3, one process, no GPU."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "keras"), str(HERE.parent / "mpi"), str(HERE.parents[1] / "examples")]

if find_spec("tensorflow") is None or find_spec("keras") is None:
    collect_ignore_glob = ["test_*.py"]
else:
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    with warnings.catch_warnings():  # TensorFlow's own, at import; what we do must not warn
        warnings.simplefilter("ignore")
        import keras  # noqa: F401 - so that the warnings are over
        import tensorflow as tf  # noqa: F401


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is here: needs TensorFlow, runs on both stacks."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.tf)
            item.add_marker(pytest.mark.stack_b)
            item.add_marker(pytest.mark.filterwarnings("ignore::DeprecationWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::FutureWarning"))


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
    from spy import Spy

    from hpcckpt.native import plugins
    from hpcckpt.tmci import calls

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
