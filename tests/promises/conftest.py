"""What stops a run at a phase, for the tests of two tiers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from twotiers import Trap

from hpcckpt import phases
from hpcckpt.testing.groups import is_with_mpi


@pytest.fixture
def holding() -> Iterator[Trap]:
    """One for all ranks of this process that does no more than hold drains back."""
    made = Trap()
    phases.install_hook(made)
    yield made
    made.let_drains_go()
    phases.install_hook(None)


@pytest.fixture
def trap(request: pytest.FixtureRequest, holding: Trap) -> Trap:
    """One that acts on what all ranks share, so once for all of them."""
    if is_with_mpi(request.config):
        pytest.skip("acts on all ranks at once: runs on threads")
    return holding
