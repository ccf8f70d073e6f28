"""The entries of headers that this process wrote or read, so that none is parsed and checked twice. Pure.

A header is known by all its bytes: a file that was written over, replaced or damaged has others.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import NamedTuple

from hpcckpt.manifest import Manifest
from hpcckpt.plan import FileRecord, StoredEntry

MAX_BYTES = 16 << 20
"""Of headers that are kept; what is made of them takes about three times as much."""


class _Key(NamedTuple):
    """What the entries of a file depend on, beside its header."""

    record: FileRecord
    save_id: str
    n_ranks: int
    block_bytes: int

    @classmethod
    def of(cls, record: FileRecord, manifest: Manifest) -> _Key:
        return cls(record, record.save_id or manifest.save_id, manifest.n_ranks, manifest.block_bytes)


class _Known(NamedTuple):
    header: memoryview
    entries: Callable[[], Sequence[StoredEntry]]


class KnownHeaders:
    """The newest headers, with their entries. Safe for threads."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._kept: OrderedDict[_Key, _Known] = OrderedDict()
        self._nbytes = 0

    def find(self, header: bytes, record: FileRecord, manifest: Manifest) -> Sequence[StoredEntry] | None:
        """Return the entries of a header that is known, or None."""
        key = _Key.of(record, manifest)
        with self._guard:
            known = self._kept.get(key)
        if known is None or known.header != header:
            return None
        entries = known.entries()
        self._keep(key, _Known(known.header, lambda: entries))
        return entries

    def keep(
        self, header: bytes, record: FileRecord, manifest: Manifest, entries: Callable[[], Sequence[StoredEntry]]
    ) -> None:
        """Keep a header; `entries` returns what it holds, and is called when that is asked for first."""
        self._keep(_Key.of(record, manifest), _Known(memoryview(header), entries))

    def _keep(self, key: _Key, known: _Known) -> None:
        with self._guard:
            before = self._kept.pop(key, None)
            self._nbytes += known.header.nbytes - (before.header.nbytes if before else 0)
            self._kept[key] = known
            while self._nbytes > MAX_BYTES:
                _, oldest = self._kept.popitem(last=False)
                self._nbytes -= oldest.header.nbytes
