"""Tests that start real MPI jobs; they themselves run in one process."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # the helpers here are also imported by the programs under mpirun

from mpi_launch import find_mpirun

from hpcckpt.collective.communicator import launched_size


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave these tests out where they cannot run: without a launcher, or inside a job of another one."""
    reason = "no mpirun on the PATH" if find_mpirun() is None else ""
    if launched_size() not in {None, 1}:
        reason = "these tests start MPI jobs of their own; run pytest without mpirun"
    for item in items:
        if reason and Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.skip(reason=reason))
