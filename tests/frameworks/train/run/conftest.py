"""Tests of trainings from configurations: run, killed, resumed, on one rank and on many."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import frameworks

HERE = Path(__file__).parent
LAUNCHER_VARIABLES = ("OMPI_", "PMI", "PMIX_", "SLURM_", "PALS_", "ALPS_")

if not frameworks.import_tensorflow():
    collect_ignore_glob = ["test_*.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is here: needs TensorFlow, runs on both stacks."""
    frameworks.mark(items, HERE, "tf", "stack_b")


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have no launcher around: tests that want one start it themselves."""
    for name in list(os.environ):
        if name.startswith(LAUNCHER_VARIABLES):
            monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """Take back what a seed leaves behind."""
    import tensorflow as tf

    yield
    tf.random.set_global_generator(tf.random.Generator.from_non_deterministic_state())


@pytest.fixture(scope="session")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What a run without interruption ends with: ``straight(kind, n_ranks)``; each is trained once for all tests."""
    from tests.support.train import pieces
    from tests.support.train.launch import KERAS_LOOP, completed, train

    known: dict[tuple[str, int, str], dict[str, Any]] = {}

    def find(kind: str, n_ranks: int, loop: str = KERAS_LOOP) -> dict[str, Any]:
        if (kind, n_ranks, loop) not in known:
            run = tmp_path_factory.mktemp("straight") / "run"
            completed(train(run, pieces.two_cycles(loop, distributed=kind), n_ranks))
            known[kind, n_ranks, loop] = pieces.ends_with(run)
        return known[kind, n_ranks, loop]

    return find


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., list[Any]]:
    """Train in this process, silently: ``run(config, resume="auto", …)``; the run directory is ``tmp_path / "run"``."""
    from hpcckpt.train import Environment

    def train(config: Any, resume: str | int = "auto", **options: Any) -> list[Any]:
        return Environment(tmp_path / "run", resume, **{"verbose": 0, **options}).run(config)

    return train
