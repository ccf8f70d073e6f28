"""The contract of a storage backend: it puts planned bytes on storage, and nothing else.

Saving (the numbers are those of the commit protocol)::

    1) (root)  prepare      create what must exist before ranks write
    2) (each)  write        write this rank's payloads, on a thread; all durable on return

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


class Payload:
    """One item and its bytes.

    Parameters
    ----------
    item : WriteItem
        What it is.
    data : numpy.ndarray of uint8
        A flat, C-contiguous view, which keeps alive what it needs and stays as it is until it is released.
    """

    __slots__ = ("_data", "item")

    def __init__(self, item: WriteItem, data: Bytes) -> None:
        self.item = item
        self._data: Bytes | None = data

    @property
    def data(self) -> Bytes:
        """The bytes."""
        if self._data is None:
            raise AssertionError(f"the bytes of {self.item.spec.name!r} were let go of already")
        return self._data

    def release(self) -> None:
        """Let go of the bytes; a backend says so of each payload as soon as its bytes are handed to the kernel."""
        self._data = None


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
        What it can do, positively: ``partial-read``, ``zero-copy``, ``shared-file``, ``recycles`` (writes over
        the files of a retired step that it finds in the staging directory).
    """

    name: ClassVar[str]
    features: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, threads: int = 1, **options: Any) -> None:
        if options:
            raise TypeError(f"backend {self.name!r} has no options {', '.join(sorted(options))}")
        self.threads = threads

    @abstractmethod
    def prepare(self, path: Path) -> None:
        """Create what must exist in a new staging directory before ranks write. Root only."""

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
