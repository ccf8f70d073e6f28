"""What the benchmarks share: the command line, the state, the clock."""

from __future__ import annotations

import argparse
import ctypes
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

WORLD = MPI.COMM_WORLD
NAP_S = 0.0002
REST_S, REST_LOOKS, REST_AT_MOST_S = 0.1, 5, 20.0
"""Seconds that a disk must be idle before a measurement, and in how many checks; when to continue nevertheless."""
_LIBC = ctypes.CDLL(None, use_errno=True)
_place = Path()
"""The directory that is written to; `scratch` says."""


def parser(description: str | None, *, mib: int = 1024, repeat: int = 7) -> argparse.ArgumentParser:
    """Return the options that all benchmarks have."""
    options = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    options.add_argument("--directory", default=".", help="where to write: a disk, or memory (/dev/shm)")
    options.add_argument("--mib", type=int, default=mib, help="size of the state")
    options.add_argument("--tensors", type=int, default=200, help="number of tensors")
    options.add_argument("--repeat", type=int, default=repeat, help="rounds")
    options.add_argument("--threads", type=int, default=0, help="native threads per rank; 0 chooses")
    options.add_argument("--drift", type=float, default=0.15, help="how far memcpy before and after may part")
    options.add_argument("--json", metavar="FILE", help="write every measurement there too")
    return options


def make_state(n_tensors: int, nbytes: int) -> dict[str, np.ndarray]:
    """Return replicated tensors, all pages touched."""
    each = nbytes // n_tensors // 4
    return {f"layer{n:03d}/kernel": np.full(each, n, np.float32) for n in range(n_tensors)}


def own_part(state: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Return the bytes that this process writes when the tensors are laid end to end and cut evenly."""
    total, pieces, position = sum(a.nbytes for a in state.values()), [], 0
    begin, end = (total * (WORLD.rank + more) // WORLD.size for more in (0, 1))
    for array in state.values():
        data = array.reshape(-1).view(np.uint8)
        part = data[max(0, begin - position) : max(0, end - position)]
        position += data.nbytes
        pieces += [part] if part.nbytes else []
    return pieces


@contextmanager
def scratch(directory: str) -> Iterator[Path]:
    """Give all ranks one new directory, and remove it when they are done."""
    global _place
    made = tempfile.mkdtemp(prefix="hpcckpt-bench-", dir=os.path.abspath(directory)) if WORLD.rank == 0 else None
    place = WORLD.bcast(made)
    _place = Path(place)
    try:
        yield _place
        meet()
    finally:
        if WORLD.rank == 0:
            shutil.rmtree(place, ignore_errors=True)


def meet() -> None:
    """Wait for all ranks asleep: a rank that has nothing to do must not take a core from one that has."""
    request = WORLD.Ibarrier()
    while not request.Test():
        time.sleep(NAP_S)


def timed(fn: Callable[[], Any]) -> float:
    """Return the seconds from the first rank's start to the last rank's end."""
    meet()
    began = time.perf_counter()
    fn()
    meet()
    return WORLD.allreduce(time.perf_counter() - began, op=MPI.MAX)


def settle(fn: Callable[[], Any]) -> None:
    """Do something outside the clock, on root, and let the file system come to rest."""
    meet()
    if WORLD.rank == 0:
        fn()
        _sync_file_system(_place)
        _wait_for_device(_place)
    meet()


def _sync_file_system(path: Path) -> None:
    """Wait for the writes to this file system only, not for those of other programs elsewhere."""
    fd = os.open(path, os.O_RDONLY)
    try:
        if _LIBC.syncfs(fd) != 0:
            raise OSError(ctypes.get_errno(), "syncfs", os.fspath(path))
    finally:
        os.close(fd)


def _wait_for_device(path: Path) -> None:
    """Wait until the disk has had nothing to do for a moment: what was removed is discarded behind a sync's back."""
    status = os.stat(path).st_dev
    counters = Path(f"/sys/dev/block/{os.major(status)}:{os.minor(status)}/stat")
    if not counters.exists():  # memory, a network
        return
    quiet, before, patience = 0, "", time.monotonic() + REST_AT_MOST_S
    while quiet < REST_LOOKS and time.monotonic() < patience:
        time.sleep(REST_S / REST_LOOKS)
        now = counters.read_text(encoding="ascii")
        quiet, before = (quiet + 1 if now == before else 0), now


def warm_memory(nbytes: int) -> None:
    """Touch and free memory, so that whatever is measured next finds pages that the host has not taken back."""
    np.ones(nbytes, np.uint8)


def slowest_copy(copy_rate: Callable[[], float]) -> float:
    """Return the slowest rank's memcpy rate, all ranks copying at once. Collective."""
    meet()
    return WORLD.allreduce(copy_rate(), op=MPI.MIN)
