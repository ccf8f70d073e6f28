"""Tests that start real MPI jobs; they themselves run in one process, without --with-mpi."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcckpt.collective.communicator import launched_size
from tests.support.mpi.launch import find_mpirun

HERE = Path(__file__).parent


def _reason_to_skip() -> str:
    if launched_size() not in {None, 1}:
        return "these tests start MPI jobs of their own; run pytest without mpirun"
    return "" if find_mpirun() else "no mpirun on the PATH"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip where no job can be started, and undo pytest-mpi's skip of everything in a directory called ``mpi``."""
    reason = _reason_to_skip()
    for item in items:
        if HERE not in item.path.parents or not item.path.name.startswith("test_"):
            continue
        item.own_markers[:] = [m for m in item.own_markers if "--with-mpi" not in str(m.kwargs.get("reason"))]
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))
