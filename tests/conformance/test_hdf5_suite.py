"""The backend `hdf5` keeps the promises that are asked of every backend, with each driver that needs no MPI."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from hpcckpt.testing.backends import BackendSuite

pytest.importorskip("h5py")
pytestmark = pytest.mark.stack_b


class TestDirect(BackendSuite):
    backend = "hdf5"
    counts = (1, 3)


class TestPerRank(BackendSuite):
    backend = "hdf5"
    backend_options: ClassVar[dict[str, Any]] = {"driver": "per-rank"}
    counts = (3,)
