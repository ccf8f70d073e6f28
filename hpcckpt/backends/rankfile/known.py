"""The entries of headers that this process wrote or read, so that none is parsed and checked twice.

A header is known by all its bytes: a file that was written over, replaced or damaged has other ones.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import NamedTuple

from hpcckpt.core.plan import FileRecord, StoredEntry

MAX_BYTES = 16 << 20
"""Of headers that are kept; the entries take about three times as much."""


class Key(NamedTuple):
    """What the entries of a file depend on beside its header."""

    record: FileRecord
    save_id: str
    n_ranks: int
    block_bytes: int


class _Header(NamedTuple):
    header: memoryview
    entries: Callable[[], Sequence[StoredEntry]]


class KnownHeaders:
    """The headers that were used last, with their entries. Safe for threads."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Begin again, in a forked child too: there no thread would release a lock that was held."""
        self._guard = threading.Lock()
        self._kept: OrderedDict[Key, _Header] = OrderedDict()
        self._nbytes = 0

    def find(self, key: Key, header: bytes) -> Sequence[StoredEntry] | None:
        """Return the entries of a header that is known, or None."""
        with self._guard:
            known = self._kept.get(key)
        if known is None or known.header != header:
            return None
        entries = known.entries()
        self.keep(key, known.header, lambda: entries)
        return entries

    def keep(self, key: Key, header: memoryview, entries: Callable[[], Sequence[StoredEntry]]) -> None:
        """Keep a header; `entries` returns what it holds, and is called when that is asked for."""
        with self._guard:
            before = self._kept.pop(key, None)
            self._nbytes += header.nbytes - (before.header.nbytes if before else 0)
            self._kept[key] = _Header(header, entries)
            while self._nbytes > MAX_BYTES:
                _, oldest = self._kept.popitem(last=False)
                self._nbytes -= oldest.header.nbytes
