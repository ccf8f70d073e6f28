"""Warm memory: there from the beginning, and gone with the last view."""

from __future__ import annotations

import mmap
import os
import resource
import signal
import subprocess
import sys
import weakref
from types import ModuleType

import numpy as np
import pytest

from hpcckpt.errors import HostMemoryError
from hpcckpt.native.arena import ArenaPool

pytestmark = pytest.mark.one_case

MIB = 1 << 20
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def resident_bytes() -> int:
    with open("/proc/self/statm", encoding="utf-8") as file:
        return int(file.read().split()[1]) * mmap.PAGESIZE


def n_faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


@pytest.mark.parametrize("nbytes", [0, 1, 4095, 4096, 4097, 5 * MIB + 3])
@pytest.mark.parametrize("threads", [1, 3])
def test_an_arena_has_its_size_and_is_zeroed_writable_and_on_a_page(io: ModuleType, nbytes: int, threads: int) -> None:
    arena = io.Arena(nbytes, threads)
    whole = arena.view(0, nbytes)
    assert arena.nbytes == whole.nbytes == nbytes
    assert whole.dtype == np.uint8
    assert not whole.any()
    assert nbytes == 0 or whole.ctypes.data % mmap.PAGESIZE == 0
    whole[:] = 7
    assert (arena.view(0, nbytes) == 7).all()


@on_linux
def test_its_pages_are_there_before_they_are_used(io: ModuleType) -> None:
    arena = io.Arena(64 * MIB, 2)
    whole = arena.view(0, 64 * MIB)
    before = n_faults()
    whole[:] = 1
    assert n_faults() - before < 100  # of 16384 pages


@on_linux
def test_its_pages_stay_while_a_forked_child_lives(io: ModuleType) -> None:
    arena = io.Arena(64 * MIB, 2)
    child = os.fork()
    if child == 0:
        signal.pause()
        os._exit(0)
    try:
        before = n_faults()
        arena.view(0, 64 * MIB)[:] = 1
        assert n_faults() - before < 100  # of 16384 pages
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


@on_linux
def test_a_forked_child_that_drops_it_keeps_its_own_memory() -> None:
    program = """
import os
import numpy as np
from hpcckpt.native.arena import Arena
arena = Arena(64 << 20)
arena.view(0, arena.nbytes)[:] = 1
child = os.fork()
if child == 0:
    own = [np.ones(1 << 20, np.uint8) for _ in range(200)]
    assert not arena.view(0, arena.nbytes).any()
    del arena
    assert sum(int(each.sum()) for each in own) == 200 << 20
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert arena.view(0, arena.nbytes).all()
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_an_arena_that_is_too_large_is_not_kept() -> None:
    pool = ArenaPool(1, most_nbytes=100)
    for nbytes, is_kept in [(100, True), (101, False)]:
        arena = pool.take(nbytes)
        pool.give_back(arena)
        assert (pool.take(nbytes) is arena) == is_kept


def test_a_closed_pool_keeps_no_memory() -> None:
    pool = ArenaPool(1)
    kept, in_use = pool.take(100), pool.take(100)
    alive = [weakref.ref(kept), weakref.ref(in_use)]
    pool.give_back(kept)
    del kept
    pool.close()
    pool.give_back(in_use)
    del in_use
    assert [each() for each in alive] == [None, None]


@on_linux
def test_the_memory_goes_back_with_the_last_view(io: ModuleType) -> None:
    arena = io.Arena(64 * MIB)
    part = arena.view(10, 20)[3:4]
    del arena
    part[0] = 9
    assert resident_bytes() > 64 * MIB
    before = resident_bytes()
    assert part[0] == 9
    del part
    assert before - resident_bytes() > 48 * MIB


def test_views_lie_within_the_arena(io: ModuleType) -> None:
    arena = io.Arena(100)
    assert arena.view(100, 0).nbytes == 0
    for offset, nbytes in [(-1, 2), (0, -1), (0, 101), (100, 1), (101, 0)]:
        with pytest.raises(ValueError, match=f"no {nbytes} bytes at offset {offset} in an arena of 100"):
            arena.view(offset, nbytes)


def test_views_of_one_place_are_one_memory(io: ModuleType) -> None:
    arena = io.Arena(100)
    first, second = arena.view(10, 50), arena.view(20, 50)
    io.copy_pieces([(b"abcd", first[10:14])])
    assert second[:4].tobytes() == b"abcd"


def test_too_much_is_a_memory_error(io: ModuleType) -> None:
    for nbytes in (1 << 56, 1 << 70):
        with pytest.raises(HostMemoryError, match=f"no room for an arena.*max_bytes_in_flight below {nbytes}"):
            io.Arena(nbytes)
    with pytest.raises(ValueError, match="negative"):
        io.Arena(-1)
    with pytest.raises(ValueError, match="threads: 0"):
        io.Arena(1, 0)


@pytest.mark.parametrize("nbytes", [0, 1, 4096, 33 * MIB + 5])
@pytest.mark.parametrize("shift", [0, 1, 4095])
def test_prefaulting_changes_nothing(io: ModuleType, nbytes: int, shift: int) -> None:
    memory = np.resize(np.arange(251, dtype=np.uint8), nbytes + shift)
    expected = memory.copy()
    io.prefault(memory[shift:], 2)
    assert (memory == expected).all()


@on_linux
@pytest.mark.parametrize("shift", [0, 4095])
def test_prefaulting_makes_every_page_present(io: ModuleType, shift: int) -> None:
    memory = mmap.mmap(-1, 8192 * 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    io.prefault(np.frombuffer(memory, np.uint8)[shift : shift + 8190 * 4096 + 2], 3)
    before = n_faults()
    for page in range(8191):
        memory[shift + page * 4096] = 1
    assert n_faults() - before < 100


def test_what_is_read_only_cannot_be_prefaulted(io: ModuleType) -> None:
    with pytest.raises(BufferError, match="read-only"):
        io.prefault(b"abc")
