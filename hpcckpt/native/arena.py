"""Memory that is warm: allocated once, every page present, and used for one snapshot after the other."""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING, cast

import numpy as np

from hpcckpt.core.units import nbytes_text
from hpcckpt.errors import HostMemoryError

if TYPE_CHECKING:
    import numpy.typing as npt

_MADV_WIPEONFORK = 18  # from <sys/mman.h>: Python has no name for it


class Arena:
    """Zeroed, page-aligned memory with all pages allocated in advance. Independent.

    It cannot grow.  The memory is returned to the system when the arena and all its views are gone. In a forked child
    it is zeroed.

    Parameters
    ----------
    nbytes
        Size.
    threads
        Number of threads that allocate the pages, without the GIL.

    Raises
    ------
    HostMemoryError
        If the system does not have this much memory.
    """

    __slots__ = ("__weakref__", "_bytes")

    def __init__(self, nbytes: int, threads: int = 1) -> None:
        from hpcckpt import native  # which imports this module

        if nbytes < 0:
            raise ValueError(f"nbytes: {nbytes} is negative")
        self._bytes = np.frombuffer(cast("memoryview", _map(nbytes)), np.uint8)[:nbytes]
        native.prefault(self._bytes, threads)

    @property
    def nbytes(self) -> int:
        """Size in bytes, as requested."""
        return self._bytes.nbytes

    def view(self, offset: int, nbytes: int) -> npt.NDArray[np.uint8]:
        """Return a part of the memory, which keeps all of it alive.

        Parameters
        ----------
        offset, nbytes
            Where the part begins, and its length.

        Raises
        ------
        ValueError
            If it does not lie within the arena.
        """
        if offset < 0 or nbytes < 0 or offset + nbytes > self.nbytes:
            raise ValueError(f"no {nbytes} bytes at offset {offset} in an arena of {self.nbytes}")
        return self._bytes[offset : offset + nbytes]


def _map(nbytes: int) -> mmap.mmap:
    # Not shared, which is Python's default: that would be a file in /dev/shm's file system, without large pages.
    try:
        memory = mmap.mmap(-1, max(nbytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as error:
        raise HostMemoryError(
            f"no room for an arena of {nbytes_text(nbytes)}, which a snapshot is copied to: {error}; save with "
            f"async_save=False or with max_bytes_in_flight below {nbytes}: then save waits, and copies nothing"
        ) from error
    if hasattr(mmap, "MADV_HUGEPAGE"):
        try:
            memory.madvise(mmap.MADV_HUGEPAGE)
        except OSError:
            pass  # a kernel without them: small pages are slower to get, and then as good
    try:  # else, while a forked child lives, each save would have to touch fresh memory
        memory.madvise(_MADV_WIPEONFORK)
    except OSError:
        pass  # not Linux, or before 4.14
    return memory


class ArenaPool:
    """Arenas that are used again, one for each save that may be under way.

    Parameters
    ----------
    threads : int
        Native threads that touch a new arena.
    most_nbytes : int, optional
        Larger arenas are not kept.
    """

    def __init__(self, threads: int, most_nbytes: int | None = None) -> None:
        self._threads, self._most_nbytes = threads, most_nbytes
        self._free: list[Arena] = []

    def take(self, nbytes: int) -> Arena:
        """Return an unused arena of at least `nbytes`. Independent."""
        while self._free:
            arena = self._free.pop()
            if arena.nbytes >= nbytes:
                return arena
        return Arena(nbytes, self._threads)

    def give_back(self, arena: Arena) -> None:
        """Let the next save have it, unless it is too large to be kept. Independent."""
        if self._most_nbytes is None or arena.nbytes <= self._most_nbytes:
            self._free.append(arena)

    def close(self) -> None:
        """Release the memory that is kept, and keep none from now on. Independent."""
        self._most_nbytes = -1
        self._free.clear()
