"""Which part of the data belongs to this rank, and what one rank does for all.

The training sets it once, around the call of a dataset function::

    with sharing(rank, size, comm=comm, seed=7):
        train, valid = from_raw(batch_size=64)

Outside of it, it is what ``comm=None`` means everywhere: the ranks of the launcher, else one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from hpcckpt.collective.communicator import Communicator, SerialCommunicator
from hpcckpt.collective.connect import as_communicator
from hpcckpt.errors import OptionError

T = TypeVar("T")


class Share(NamedTuple):
    """This rank, and the number of ranks that share the data.

    Attributes
    ----------
    rank, size : int
        A rank has every `size`-th image in the order of an epoch, beginning with image number `rank`.
    """

    rank: int = 0
    size: int = 1


@dataclass(frozen=True, slots=True)
class _Sharing:
    share: Share
    comm: Any = None
    seed: int | None = None


_CURRENT: ContextVar[_Sharing | None] = ContextVar("hpcckpt.train.datasets.sharing", default=None)


@contextlib.contextmanager
def sharing(rank: int, size: int, *, comm: Any = None, seed: int | None = None) -> Iterator[Share]:
    """Make dataset functions return this rank's share within a block. Independent.

    Parameters
    ----------
    rank, size : int
        This rank, and the number of ranks that train together.
    comm : Communicator or mpi4py communicator, optional
        A communicator of these ranks, for work that rank 0 does for all, such as converting; ``None`` is all ranks that
        the launcher started.
    seed : int, optional
        Seed of the order of the data, for dataset functions that are given no seed.

    Raises
    ------
    OptionError
        If there is no such rank.
    """
    if not 0 <= rank < size:
        raise OptionError(f"sharing: there is no rank {rank} of {size}; ranks are counted from 0")
    token = _CURRENT.set(_Sharing(Share(rank, size), comm, seed))
    try:
        yield Share(rank, size)
    finally:
        _CURRENT.reset(token)


def share() -> Share:
    """Return this rank's share. Independent within `sharing`, else Collective.

    Outside of `sharing` with only one rank it is Independent too.
    """
    current = _CURRENT.get()
    if current is not None:
        return current.share
    with ranks() as comm:
        return Share(comm.rank, comm.size)


def seed_or_default(seed: int | None) -> int:
    """Return what orders the data: the seed given, else that of `sharing`, else 0. Independent."""
    current = _CURRENT.get()
    if seed is None and current is not None:
        seed = current.seed
    return 0 if seed is None else seed


@contextlib.contextmanager
def ranks(comm: Any = None) -> Iterator[Communicator]:
    """Give the ranks among which the data is dealt, for as long as the block takes. Collective.

    Parameters
    ----------
    comm : Communicator or mpi4py communicator, optional
        Others than those of `sharing`.
    """
    current = _CURRENT.get()
    group: Communicator
    if comm is None and current is not None and current.share.size == 1:
        group = SerialCommunicator()
    else:
        group = as_communicator(comm if comm is not None or current is None else current.comm)
    try:
        yield group
    finally:
        group.free()


def on_root(phase: str, fn: Callable[[], T]) -> T:
    """Run a function on rank 0 alone, and return its result, or raise its error, on every rank. Collective."""
    with ranks() as comm:
        return comm.on_root(phase, fn)
