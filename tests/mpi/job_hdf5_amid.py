"""Things that go wrong during a collective write of `hdf5`: ``job_hdf5_amid.py '{"directory": …, "ways": […]}'``.

Step 1 is whole; step 2 + n goes wrong in the way n: ``kill`` and ``raise`` stop rank 1 at one of its transfers,
``full`` is a disk without room, ``lost`` a transfer that MPI says has succeeded, ``close`` a file that rank 1 cannot
close, ``sum`` checksums for which rank 1 has no memory.
What each rank is told goes to ``DIRECTORY/WAY-RANK``.  Step 9 is whole again.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from mpi4py import MPI

import hpcckpt as hc
from hpcckpt import errors
from hpcckpt.backends.hdf5 import image, mpio, transfers
from tests.support.mpi.hdf5_states import Case

WORLD = MPI.COMM_WORLD
CASE = Case("mpio", {"driver": "mpio"})
STOPS_AT = 3
"""At which of its transfers rank 1 stops."""


def stopping(way: str) -> Any:
    """Return a `_select` that stops rank 1."""
    select, count = transfers._select, [0]

    def stop(*args: Any) -> None:
        count[0] += 1
        if WORLD.rank == 1 and count[0] == STOPS_AT:
            if way == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise OSError("disk on fire")
        select(*args)

    return stop


def losing() -> Any:
    """Return a `_selected` that gives MPI other bytes than it should, on rank 1."""
    selected = transfers.Writing._selected

    def select(writing: Any, stored: Any, transfer: Any) -> Any:
        memory, space, data = selected(writing, stored, transfer)
        is_lost = WORLD.rank == 1 and stored.path == "large/whole"
        return memory, space, np.zeros_like(data) if is_lost else data

    return select


@contextmanager
def unclosed(*args: Any, **options: Any) -> Iterator[Any]:
    """Open a file that says on rank 1 that it cannot be closed."""
    with image.opened(*args, **options) as structure:
        yield structure
    if WORLD.rank == 1:
        raise OSError("no word from the server")


def going_wrong(way: str) -> Any:
    """Return what makes a save go wrong."""
    if way in ("kill", "raise"):
        return mock.patch.object(transfers, "_select", stopping(way))
    if way == "full":
        full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return mock.patch.object(mpio, "_reserve", mock.Mock(side_effect=full))
    if way == "sum":
        summed = mock.Mock(side_effect=MemoryError("no room for checksums"))
        return mock.patch.object(mpio.native, "crc32c_blocks", summed) if WORLD.rank == 1 else nullcontext()
    if way == "close":
        return mock.patch.object(mpio, "opened", unclosed)
    return mock.patch.object(transfers.Writing, "_selected", losing())


def main() -> None:
    """Run."""
    request = json.loads(sys.argv[1])
    directory = Path(request["directory"])
    options: dict[str, Any] = {"backend": "hdf5", "backend_options": CASE.options, "max_to_keep": None}
    with hc.Checkpointer(directory / "run", **options) as ckpt:
        ckpt.save(1, CASE.state(WORLD, 1)).result()
        for number, way in enumerate(request["ways"]):
            try:
                with going_wrong(way):
                    ckpt.save(2 + number, CASE.state(WORLD, 2)).result()
            except errors.CollectiveError as error:
                text = f"{type(error).__mro__[2].__name__}: {error}"
                (directory / f"{way}-{WORLD.rank}").write_text(text, encoding="utf-8")
        ckpt.save(9, CASE.state(WORLD, 9)).result()


main()
