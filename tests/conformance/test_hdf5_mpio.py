"""The backend `hdf5` by MPI-IO keeps the promises that are asked of every backend, on real ranks."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from hpcckpt.collective.communicator import launched_size
from hpcckpt.testing.backends import BackendSuite

h5py = pytest.importorskip("h5py")
pytestmark = [
    pytest.mark.mpi,
    pytest.mark.skipif(not h5py.get_config().mpi, reason="h5py was built without MPI"),
]


class TestMpio(BackendSuite):
    backend = "hdf5"
    backend_options: ClassVar[dict[str, Any]] = {"driver": "mpio"}


if launched_size() == 2:  # packs and unpacks in the same way on any number of ranks

    class TestMpioPacked(BackendSuite):
        backend = "hdf5"
        backend_options: ClassVar[dict[str, Any]] = {
            "driver": "mpio",
            "compression": "gzip",
            "chunks": 1 << 16,
            "compression_level": 1,
        }
