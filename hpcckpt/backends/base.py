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
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from hpcckpt.manifest import Manifest
from hpcckpt.plan import DamagedBlock, FileRecord, Index, SaveJob, StoredEntry, WriteItem, WriteReport

Bytes = npt.NDArray[np.uint8]


class InFile(NamedTuple):
    """A file of tensors that do not change, how many it has, and the CRC32C of the blocks of one of them."""

    file: FileRecord
    n_in_file: int
    crcs: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Known:
    """What is known of a payload of the newest committed step.

    Attributes
    ----------
    crcs : tuple of int
        CRC32C of its blocks.
    data : numpy.ndarray or None
        Its bytes, if they were held ever since.
    where : InFile or None
        The file that holds it among nothing but such tensors, if there is one.
    """

    crcs: tuple[int, ...]
    data: Bytes | None
    where: InFile | None = None


class Payload:
    """One item and its bytes.

    Parameters
    ----------
    item : WriteItem
        What it is.
    data : numpy.ndarray of uint8
        A flat, C-contiguous view, which keeps alive what it needs and stays as it is until it is released.
    is_held : bool
        Whether the view looks at the program's own buffer, which the program copies before it changes it.
    """

    __slots__ = ("_before", "_data", "is_held", "is_unchanged", "item", "known")

    def __init__(self, item: WriteItem, data: Bytes, is_held: bool = False) -> None:
        self.item = item
        self.is_held = is_held
        self.is_unchanged = False
        self.known: Known | None = None
        self._data: Bytes | None = data
        self._before: Known | None = None

    @property
    def data(self) -> Bytes:
        """The bytes."""
        if self._data is None:
            raise AssertionError(f"the bytes of {self.item.spec.name!r} were let go of already")
        return self._data

    @property
    def linkable(self) -> InFile | None:
        """Where the very bytes of this payload stand in the newest committed step, to be linked into this one."""
        return self._before.where if self.is_unchanged and self._before is not None else None

    def compare_with(self, before: Known | None) -> None:
        """Say what is known of the same item in the newest committed step."""
        self._before = before
        held = before.data if before else None
        self.is_unchanged = held is not None and self._data is not None and _address(held) == _address(self._data)

    def let_go(self) -> None:
        """Let go of the bytes, which the kernel has by now, unless they may turn out to be frozen.

        A backend says so of each payload as soon as it can: whatever is held is copied by its next update.
        """
        if self._before is None:
            self._data = None

    def landed(self, crcs: Sequence[int], file: FileRecord | None = None, n_in_file: int = 0) -> None:
        """Say where the bytes are now, and let go of them unless they seem to be frozen.

        Parameters
        ----------
        crcs : sequence of int
            CRC32C of their blocks.
        file : FileRecord, optional
            Their file, if it has none but unchanged tensors.
        n_in_file : int
            How many it has.
        """
        if self.is_held:
            own = tuple(crcs)
            seems_frozen = self._before is not None and self._before.crcs == own
            where = InFile(file, n_in_file, own) if file is not None else None
            self.known = Known(own, self._data if seems_frozen else None, where)
        self._data = None


def _address(data: Bytes) -> tuple[int, int]:
    return data.__array_interface__["data"][0], data.nbytes


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

    def __init__(self, threads: int = 1, nice: int = 0, **options: Any) -> None:
        if options:
            raise TypeError(f"backend {self.name!r} has no options {', '.join(sorted(options))}")
        self.threads = threads
        self.nice = nice

    @abstractmethod
    def prepare(self, path: Path) -> None:
        """Create what must exist in a new staging directory before ranks write. Root only."""

    def reuse(self, path: Path, n_ranks: int) -> None:
        """Make a staging directory of a retired step, whose files may be written over. Root only.

        Called only where the feature ``recycles`` is there. Every file that `write` will not find by its name, or
        that has another name, must go.
        """
        raise NotImplementedError(f"backend {self.name!r} says that it recycles, and cannot")

    @abstractmethod
    def write(
        self, job: SaveJob, path: Path, rank: int, payloads: Sequence[Payload], base: Path | None = None
    ) -> WriteReport:
        """Write this rank's payloads; files, and directories with new entries, are durable on return. Independent.

        Parameters
        ----------
        job : SaveJob
            Identity of the save.
        path : pathlib.Path
            The staging directory.
        rank : int
            This rank.
        payloads : sequence of Payload
            What to write; `Payload.landed` is called for each.
        base : pathlib.Path, optional
            The newest committed step, from which files of `Payload.linkable` payloads may be linked.
        """

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
