"""The ranks of Horovod as a `Communicator`, however Horovod was started.

Horovod may span all of MPI.COMM_WORLD, a communicator that was given to ``hvd.init``, some ranks of it, or be
restricted to a process set. So Horovod itself is used: its ranks exchange their ranks in MPI.COMM_WORLD, and a new
communicator is made of these, in Horovod's order. Its messages cannot be confused with Horovod's or the program's.
"""

from __future__ import annotations

from typing import Any

from hpcckpt.collective.communicator import Communicator, SerialCommunicator
from hpcckpt.collective.connect import as_communicator
from hpcckpt.errors import CodeError, MpiError, OptionError


def start() -> Communicator:
    """Start Horovod on all ranks of the job, and return its communicator. Collective.

    It calls ``hvd.init()``, after MPI was started. If Horovod started MPI, it would also finalize MPI on all ranks when
    the first rank exits, while other ranks may still communicate. A Horovod that is already running is left as it is.

    Raises
    ------
    MpiError
        If Horovod's ranks are not those of mpi4py, or it is not clear which launcher started them.
    """
    import horovod.tensorflow as hvd

    as_communicator(None).free()
    hvd.init()
    return communicator()


def communicator(process_set: Any = None) -> Communicator:
    """Return a communicator of Horovod's ranks, or of those of a process set. Collective.

    Parameters
    ----------
    process_set : hvd.ProcessSet, optional
        A process set that this rank belongs to; by default all of Horovod's ranks.

    Raises
    ------
    CodeError
        If Horovod is not initialized.
    OptionError
        If this rank is not in the process set.
    MpiError
        If Horovod's ranks are not those of mpi4py: it runs over Gloo, or over another MPI.
    """
    hvd = initialized()
    ranks = ranks_of(process_set)
    if hvd.rank() not in ranks:
        raise OptionError(
            f"process_set: rank {hvd.rank()} of Horovod is not in it ({ranks}); only its own ranks may use it"
        )
    if len(ranks) == 1:
        return SerialCommunicator()
    from hpcckpt.collective.mpi import of_world_ranks, world_rank  # starts MPI, unless Horovod has

    chosen = {} if process_set is None else {"process_set": process_set}
    found = [int(each) for each in hvd.allgather([world_rank()], name="hpcckpt.ranks", **chosen)]
    if len(set(found)) != len(found):
        raise MpiError(
            f"Horovod has {len(found)} ranks that mpi4py sees as ranks {found}: they do not share an MPI; build "
            "Horovod with HOROVOD_WITH_MPI=1 and mpi4py with the same MPI, and start with its mpirun"
        )
    return of_world_ranks(found)


def initialized() -> Any:
    """Return Horovod, ready for use. Independent.

    Raises
    ------
    CodeError
        If it is not initialized.
    """
    import horovod.tensorflow as hvd

    if not hvd.is_initialized():
        raise CodeError("Horovod is not initialized: call hvd.init() first")
    return hvd


def ranks_of(process_set: Any) -> list[int]:
    """Return Horovod's numbers for the ranks of a process set; of all if there is none. Independent.

    Raises
    ------
    OptionError
        If the process set was not added to Horovod.
    """
    if process_set is None or process_set.process_set_id == 0:
        return list(range(initialized().size()))
    if process_set.process_set_id is None:
        raise OptionError(
            f"process_set: {process_set} is not known to Horovod; give it to hvd.init(process_sets=…), or to "
            "hvd.add_process_set"
        )
    return sorted(process_set.ranks)
