"""Tests of the Horovod shell: real Horovod on real ranks, in jobs that the tests start."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from hpcckpt.collective.communicator import launched_size
from tests.support.mpi.launch import find_mpirun

HERE = Path(__file__).parent


def _reason_to_skip() -> str:
    if find_spec("horovod") is None:
        return "Horovod is not installed"
    if launched_size() not in {None, 1}:
        return "these tests start MPI jobs of their own; run pytest without mpirun"
    return "" if find_mpirun() else "no mpirun on the PATH"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is here: needs Horovod, and jobs of more than one rank."""
    reason = _reason_to_skip()
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.tf)
            item.add_marker(pytest.mark.horovod)
            item.add_marker(pytest.mark.timeout(900))  # jobs have time-outs of their own
            if reason:
                item.add_marker(pytest.mark.skip(reason=reason))
