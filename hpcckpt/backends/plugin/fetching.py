"""Which bytes a plugin is asked for when parts of entries are wanted, and where they go. Pure.

Bytes are verified by blocks, so whole blocks are loaded: straight into the buffer of a request for just them, else into
scratch.  A plugin that is not ``partial`` is asked for whole entries only, once for all requests for parts of one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from hpcckpt.backends.base import Bytes, ReadRequest
from hpcckpt.core.plan import StoredEntry
from hpcckpt.core.tensors import itemsize
from hpcckpt.errors import HostMemoryError

MAX_SCRATCH_BYTES = 64 << 20
"""Scratch that is alive at a time, unless a single entry is larger."""


@dataclass(frozen=True, slots=True, eq=False)
class Fetch:
    """Whole blocks of an entry, bytes `start` to `stop`, to load: into `into`, or into scratch for `requests`."""

    entry: StoredEntry
    start: int
    stop: int
    into: Bytes | None = None
    requests: tuple[ReadRequest, ...] = ()

    @property
    def nbytes(self) -> int:
        """How many bytes are loaded."""
        return self.stop - self.start

    def memory(self) -> Bytes:
        """Return where to load to.

        Raises
        ------
        HostMemoryError
            If there is not so much memory: what a plugin stores elsewhere may be said to be of any size.
        """
        try:
            return np.empty(self.nbytes, np.uint8) if self.into is None else self.into
        except MemoryError:
            name = self.entry.item.spec.name
            raise HostMemoryError(f"{self.nbytes} bytes of tensor {name!r} do not fit into memory") from None

    def deliver(self, loaded: Bytes) -> None:
        """Copy out of scratch what is wanted of it."""
        for request in self.requests:
            request.into[:] = loaded[request.start - self.start : request.stop - self.start]


def plan_fetches(requests: Sequence[ReadRequest], block_bytes: int, *, is_partial: bool) -> list[Fetch]:
    """Return what to load for `requests`.

    Parameters
    ----------
    requests : sequence of ReadRequest
        What is wanted.
    block_bytes : int
        Bytes per checksum.
    is_partial : bool
        Whether the plugin gives parts of entries.
    """
    fetches: list[Fetch] = []
    shared: dict[int, list[ReadRequest]] = defaultdict(list)
    for request in requests:
        if request.start == request.stop:
            continue
        start, stop = _blocks_around(request, block_bytes, is_partial=is_partial)
        if (start, stop) == (request.start, request.stop):
            fetches.append(Fetch(request.entry, start, stop, request.into))
        elif is_partial:
            fetches.append(Fetch(request.entry, start, stop, requests=(request,)))
        else:
            shared[id(request.entry)].append(request)
    fetches += [Fetch(group[0].entry, 0, group[0].entry.nbytes, requests=tuple(group)) for group in shared.values()]
    return fetches


def _blocks_around(request: ReadRequest, block_bytes: int, *, is_partial: bool) -> tuple[int, int]:
    """Return the bytes to load for a request: whole blocks of whole elements, or the whole entry."""
    entry = request.entry
    if not is_partial or block_bytes % max(itemsize(entry.item.spec.dtype), 1):
        return 0, entry.nbytes
    start = request.start // block_bytes * block_bytes
    return start, min(-(-request.stop // block_bytes) * block_bytes, entry.nbytes)


def in_batches(fetches: Iterable[Fetch]) -> Iterator[list[Fetch]]:
    """Yield fetches of one rank each, in calls that need little scratch; those that need none go together."""
    by_rank: dict[int, list[Fetch]] = defaultdict(list)
    for fetch in fetches:
        by_rank[fetch.entry.rank].append(fetch)
    for _, group in sorted(by_rank.items()):
        direct = [fetch for fetch in group if fetch.into is not None]
        if direct:
            yield direct
        batch: list[Fetch] = []
        for fetch in group:
            if fetch.into is not None:
                continue
            if batch and sum(each.nbytes for each in batch) + fetch.nbytes > MAX_SCRATCH_BYTES:
                yield batch
                batch = []
            batch.append(fetch)
        if batch:
            yield batch
