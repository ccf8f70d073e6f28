"""Test an image on two ranks: Horovod, parallel HDF5, and a checkpoint."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import numpy as np
from mpi4py import MPI

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


def horovod_adds_up() -> None:
    """Sum one number per rank in TensorFlow, with Horovod over MPI."""
    import horovod.tensorflow as hvd
    import tensorflow as tf

    hvd.init()
    total = hvd.allreduce(tf.constant([hvd.rank() + 1.0]), op=hvd.Sum)
    assert hvd.mpi_built()
    assert float(total[0]) == sum(range(1, hvd.size() + 1))


def hdf5_is_parallel(directory: Path) -> None:
    """Write one dataset from all ranks through MPI-IO."""
    import h5py

    comm = MPI.COMM_WORLD
    with h5py.File(directory / "parallel.h5", "w", driver="mpio", comm=comm) as file:
        dataset = file.create_dataset("ranks", (comm.size,), "i8")
        dataset[comm.rank] = comm.rank
        comm.Barrier()
        assert dataset[:].tolist() == list(range(comm.size))


def a_checkpoint_comes_back(directory: Path) -> None:
    """Save and restore a checkpoint with the native part."""
    import hpcckpt as hc
    from hpcckpt import native
    from hpcckpt.native import tf_ops

    assert native.IMPLEMENTATION == "native", "the native part is not there"
    assert tf_ops.loaded_if_built() is not None, f"the ops for TensorFlow are not there: {tf_ops.why_not_loaded()}"
    state = {"weights": np.arange(1000.0)}
    with hc.Checkpointer(directory / "run") as ckpt:
        ckpt.save(1, state).result()
        state["weights"][:] = 0
        assert ckpt.restore(state).step == 1
    assert np.array_equal(state["weights"], np.arange(1000.0))


def main() -> None:
    """Run all tests; a test that fails raises AssertionError."""
    comm = MPI.COMM_WORLD
    assert comm.size == 2, f"two ranks were started, but {comm.size} came"
    with tempfile.TemporaryDirectory() as own:
        directory = Path(comm.bcast(own))
        horovod_adds_up()
        hdf5_is_parallel(directory)
        a_checkpoint_comes_back(directory)
        comm.Barrier()
    if comm.rank == 0:
        print("image: Horovod over MPI, parallel HDF5, the native part and the ops for TensorFlow work on 2 ranks")


if __name__ == "__main__":
    main()
