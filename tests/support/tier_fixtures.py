"""Fixtures of runs with two tiers, for the tests of several directories."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpcckpt.core import failpoints
from tests.support.two_tiers import Nodes, Trap, on_one_node


@pytest.fixture
def places(ranks: Any, tmp_path_factory: pytest.TempPathFactory) -> Nodes:
    """A run with ranks on one node, and its directories."""
    where = Path(ranks.on_root(lambda: tmp_path_factory.mktemp("tiers")))
    (where / "kept").mkdir(exist_ok=True)
    return Nodes(where / "run", where / "disks", where / "kept", on_one_node)


@pytest.fixture
def nodes(places: Nodes) -> Nodes:
    """The same with ranks on two nodes."""
    return Nodes(places.home, places.disks, places.kept)


@pytest.fixture
def holding() -> Iterator[Trap]:
    """One for all ranks of this process that does no more than hold drains back."""
    made = Trap()
    failpoints.install_hook(made)
    yield made
    made.let_drains_go()
    failpoints.install_hook(None)


@pytest.fixture
def trap(holding: Trap) -> Trap:
    """One that acts on what all ranks share, so once for all of them: a test that takes it runs on threads."""
    return holding
