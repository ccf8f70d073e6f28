"""Run under ``mpirun -n 2 pytest --with-mpi``: the last rank fails while the others wait for it."""

import pytest


@pytest.mark.mpi(min_size=2)
def test_last_rank_fails() -> None:
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    assert world.rank < world.size - 1, "a rank's own failure"
    world.Barrier()
