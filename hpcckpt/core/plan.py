"""What each rank will write or read, and where it was written: frozen data between the layers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from hpcckpt.core.moved import renamed
from hpcckpt.core.tensors import Extent, TensorSpec, itemsize

BLOCK_BYTES = 1 << 20
"""Bytes per checksummed block; the last block of an entry is shorter."""


@dataclass(frozen=True, slots=True)
class Declaration:
    """One tensor as one rank declares it: what it is, and the extent this rank holds."""

    spec: TensorSpec
    extent: Extent

    @property
    def nbytes(self) -> int:
        """Bytes of what this rank holds."""
        return self.extent.n_elements * itemsize(self.spec.dtype)


class WriteItem(NamedTuple):  # of these there are many, and a tuple is made in a fifth of a frozen dataclass' time
    """One entry that one rank writes: elements `start` to `stop`, in C order, of the box `extent` of a tensor."""

    spec: TensorSpec
    extent: Extent
    start: int
    stop: int

    @property
    def nbytes(self) -> int:
        """Bytes of the entry."""
        return (self.stop - self.start) * itemsize(self.spec.dtype)


@dataclass(frozen=True, slots=True)
class SaveJob:
    """One save, the same on all ranks: its identity, and the file layout that root's backend made for all of them."""

    save_id: str
    step: int
    n_ranks: int
    block_bytes: int = BLOCK_BYTES
    file_layout: Any = None

    design = renamed("design", "file_layout")


@dataclass(frozen=True, slots=True)
class FullPlan:
    """What a checkpoint will hold, and who writes what of it.

    Attributes
    ----------
    tensors : tuple of TensorSpec
        All tensors, sorted by name; shapes of per-rank ones are rank 0's.
    items : tuple of tuple of WriteItem
        The entries of each rank. Values that a rank has for itself may have another size at each save.
    directory : pathlib.Path or None
        The run directory that it will be in.
    """

    tensors: tuple[TensorSpec, ...]
    items: tuple[tuple[WriteItem, ...], ...]
    directory: Path | None = None


@dataclass(frozen=True, slots=True)
class StagingSlot:
    """Where a later save is written: the name of its staging directory, and its identity."""

    name: str
    save_id: str


@dataclass(frozen=True, slots=True)
class FileRecord:
    """A data file as the manifest names it: path relative to the step, size, CRC32C of its header.

    `save_id` is the save that wrote it, where that is an older one than the manifest's; else empty.
    """

    path: str
    nbytes: int
    header_crc: int
    save_id: str = ""


@dataclass(frozen=True, slots=True)
class WriteReport:
    """What one rank wrote.

    Attributes
    ----------
    files : tuple of FileRecord
        Its files.
    shared_nbytes, own_nbytes : int
        Tensor bytes, without headers: of tensors that ranks share, and of those that each has for itself.
    linked_nbytes : int
        How many of these were linked, not written.
    detail
        Anything that the backend on root wants to know of this rank.
    """

    files: tuple[FileRecord, ...]
    shared_nbytes: int
    own_nbytes: int = 0
    linked_nbytes: int = 0
    detail: Any = None

    @classmethod
    def of(
        cls, files: tuple[FileRecord, ...], items: Iterable[WriteItem], linked_nbytes: int = 0, detail: Any = None
    ) -> WriteReport:
        """Return the report of a rank that wrote `items`."""
        nbytes = {False: 0, True: 0}
        for item in items:
            nbytes[item.spec.kind == "per-rank"] += item.nbytes
        return cls(files, nbytes[False], nbytes[True], linked_nbytes, detail)


class StoredEntry(NamedTuple):
    """Where an item was written: what it is, and file, byte offset and one CRC32C per block."""

    item: WriteItem
    rank: int
    file: str
    offset: int
    crcs: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the entry in its file."""
        return self.item.nbytes


@dataclass(frozen=True, slots=True)
class DamagedBlock:
    """A block with missing bytes, or with another checksum than when it was written."""

    tensor: str
    file: str
    offset: int
    nbytes: int
    reason: str

    def __str__(self) -> str:
        end = self.offset + self.nbytes
        return f"tensor {self.tensor!r}: {self.reason} in {self.file}, bytes {self.offset} to {end}"


Index = Mapping[str, tuple[StoredEntry, ...]]
"""All entries of a checkpoint by tensor name."""


def block_count(nbytes: int, block_bytes: int) -> int:
    """Return how many checksummed blocks `nbytes` take."""
    return math.ceil(nbytes / block_bytes)
