"""The contract of a storage backend: it puts planned bytes on storage, and nothing else.

Saving (the numbers are those of the commit protocol)::

    1) (root)  prepare      create what must exist before ranks write
    2) (each)  write        write this rank's payloads; all durable on return

Reading::

    1) (root)  index        say where every entry lies, from the files themselves
    2) (each)  read         fill buffers, verifying each block in the same pass

A backend never communicates, decides no names of steps, and never deletes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from hpcckpt.manifest import Manifest
from hpcckpt.plan import DamagedBlock, Index, SaveJob, StoredEntry, WriteItem, WriteReport

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True, eq=False)
class Payload:
    """One item and its bytes: a flat, C-contiguous view that stays valid until `write` returns."""

    item: WriteItem
    data: Bytes


@dataclass(frozen=True, slots=True, eq=False)
class ReadRequest:
    """Bytes `start` to `stop` of a stored entry are wanted in `into`, a flat writable byte view of that length."""

    entry: StoredEntry
    start: int
    stop: int
    into: Bytes


class Backend(ABC):
    """Base class of backends; one instance serves one checkpointer.

    Attributes
    ----------
    name : str
        The name users give.
    features : frozenset of str
        What it can do, positively: ``partial-read``, ``zero-copy``, ``shared-file``.
    """

    name: ClassVar[str]
    features: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, threads: int = 1, **options: Any) -> None:
        if options:
            raise TypeError(f"backend {self.name!r} has no options {', '.join(sorted(options))}")
        self.threads = threads

    @abstractmethod
    def prepare(self, job: SaveJob, path: Path) -> None:
        """Create what must exist in the temporary step directory before ranks write. Root only."""

    @abstractmethod
    def write(self, job: SaveJob, path: Path, rank: int, payloads: Sequence[Payload]) -> WriteReport:
        """Write this rank's payloads; files, and directories with new entries, are durable on return. Independent."""

    @abstractmethod
    def index(self, path: Path, manifest: Manifest) -> Index:
        """Return where every entry lies, checking each header against the manifest. Independent.

        Raises
        ------
        CorruptError
            If a header is damaged or does not belong to this save.
        """

    @abstractmethod
    def read(self, path: Path, manifest: Manifest, requests: Sequence[ReadRequest]) -> list[DamagedBlock]:
        """Fill the requests' buffers, verifying every block touched; return the damaged ones. Independent."""
