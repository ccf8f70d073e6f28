"""Tests of configurations of trainings: read, checked, explained. Those of the allow-list need TensorFlow."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from hpcckpt.cli.app import tool
from hpcckpt.train.config.cycles import Cycle, check, cycles
from hpcckpt.train.config_errors import ConfigProblem, TrainConfigError
from hpcckpt.train.names import export_config
from hpcckpt.train.names.allow_list import Catalogue
from tests.support import frameworks

HERE = Path(__file__).parent
LAUNCHER_VARIABLES = ("OMPI_", "PMI", "PMIX_", "SLURM_", "PALS_", "ALPS_")

if not frameworks.import_tensorflow():
    collect_ignore_glob = ["test_allow_*.py", "test_broken_*.py", "test_build*.py", "test_check*.py"]


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
def nothing_exported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget behind a test what it exported."""
    monkeypatch.setattr(export_config, "_EXPORTED", {})


@pytest.fixture
def seeds() -> Path:
    """The directory of the two samples, as they were published."""
    return HERE / "seeds"


def first_cycle(**changes: Any) -> dict[str, Any]:
    """Return a cycle in which nothing is wrong, with changes; ``...`` takes a key away."""
    cycle = {
        "datasets": {"hpcckpt.train.datasets.digits.from_raw": {}},
        "model": {"tf.keras.Sequential": {"layers": [{"tf.keras.layers.Dense": {"units": 10}}]}},
        "loss": {"tf.keras.losses.SparseCategoricalCrossentropy": {"from_logits": True}},
    }
    return {name: value for name, value in (cycle | changes).items() if value is not ...}


@pytest.fixture
def cycle() -> Callable[..., dict[str, Any]]:
    """A cycle in which nothing is wrong, with changes: ``cycle(seed=-1, loss=...)``."""
    return first_cycle


@pytest.fixture
def problems_of() -> Callable[..., list[ConfigProblem]]:
    """What is wrong with a configuration, in its form and in what it names: ``problems_of([cycle], allow=())``."""

    def find(config: Any, allow: tuple[str, ...] = ()) -> list[ConfigProblem]:
        catalogue = Catalogue(allow)
        try:
            found = cycles(config)
        except TrainConfigError as error:
            return list(error.problems)
        return check(found, catalogue)

    return find


@pytest.fixture
def cycles_of() -> Callable[..., tuple[Cycle, ...]]:
    """The cycles of a configuration."""
    return cycles


class Result:
    """How the command line ended."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Run the verb in this process, in an empty directory: ``train(config or path, "--check")``."""
    monkeypatch.chdir(tmp_path)

    def run(config: Any, *words: str) -> Result:
        path = config
        if not isinstance(config, str | Path):
            path = tmp_path / "config.json"
            path.write_text(json.dumps(config), encoding="utf-8")
        result = CliRunner().invoke(tool, ["train", "-c", str(path), *words])
        return Result(result.exit_code, result.stdout, result.stderr)

    return run
