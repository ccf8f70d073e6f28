"""Messages between processes arrive as they were sent, whatever becomes of the sender's objects."""

from __future__ import annotations

import gc

import pytest

pytestmark = pytest.mark.mpi(min_size=2)

N = 1 << 20  # beyond what MPI sends before it is received


def test_a_message_arrives_whole_though_its_communicator_is_gone(ranks):
    def body(comm):
        own = comm.duplicate()
        if own.is_root:
            own.bcast(b"s" * N)
            del own
            gc.collect()
            others = [b"o" * (N + 64) for _ in range(20)]
        comm.mpi.Barrier()  # from now on the message is received
        return others[0][:1] if comm.is_root else own.bcast(None)

    assert set(ranks(body)[1:]) <= {b"s" * N}
