"""Groups of ranks that a test runs a body on: threads of this process, or the processes of an MPI job."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import pytest

from hpcckpt.testing.ranks import run_ranks

if TYPE_CHECKING:
    from mpi4py import MPI


class ThreadRanks:
    """Ranks that are threads of this process."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __call__(self, body: Callable[[Any], Any]) -> list[Any]:
        """Run `body` on every rank; return the results in rank order."""
        return run_ranks(self.size, body)

    def sub(self, n_ranks: int, body: Callable[[Any], Any]) -> list[Any]:
        """Run `body` on `n_ranks` ranks, whatever the size."""
        return run_ranks(n_ranks, body)

    def on_root(self, fn: Callable[[], Any]) -> Any:
        """Run `fn` once."""
        return fn()


class MpiRanks:
    """Ranks that are the processes of MPI.COMM_WORLD; every process runs the test function."""

    def __init__(self) -> None:
        from hpcckpt.collective.mpi import MpiCommunicator, world

        self._world = world()
        self._wrap = MpiCommunicator
        self.size = self._world.size

    def __call__(self, body: Callable[[Any], Any]) -> list[Any]:
        """Run `body` on every rank; return the results in rank order, on every rank."""
        return self.sub(self.size, body)

    def sub(self, n_ranks: int, body: Callable[[Any], Any]) -> list[Any]:
        """Run `body` on the first `n_ranks` ranks; skip the test if there are fewer."""
        if n_ranks > self.size:
            pytest.skip(f"needs {n_ranks} ranks")
        is_in = self._world.rank < n_ranks
        group = self._world.mpi.Split(0 if is_in else 1, self._world.rank)
        value, error = None, None
        if is_in:
            comm = self._wrap(cast("MPI.Intracomm", group))
            try:
                value = body(comm)
            except Exception as raised:  # noqa: BLE001 - the other ranks must hear of it first
                error = raised
        outcomes = self._world.allgather((value, None if error is None else repr(error)))
        group.Free()
        if error is not None:
            raise error
        failed = {rank: text for rank, (_, text) in enumerate(outcomes) if text is not None}
        if failed:
            raise AssertionError(f"other ranks failed: {failed}")
        return [value for value, _ in outcomes[:n_ranks]]

    def on_root(self, fn: Callable[[], Any]) -> Any:
        """Run `fn` on root; every rank goes on afterwards."""
        return self._world.on_root("test", fn)


def is_with_mpi(config: pytest.Config) -> bool:
    """Return True if the tests run under MPI (``--with-mpi``, of pytest-mpi)."""
    return bool(config.getoption("--with-mpi", False) or config.getoption("--only-mpi", False))


def make_ranks(asked: int | str) -> ThreadRanks | MpiRanks:
    """Return ranks as `asked` threads, or those of the MPI job for ``"mpi"``."""
    return ThreadRanks(asked) if isinstance(asked, int) else MpiRanks()
