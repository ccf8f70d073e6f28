"""What each rank will write or read, and where it landed: frozen data between the layers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from hpcckpt.tensors import Extent, TensorSpec, itemsize

BLOCK_BYTES = 1 << 20
"""Bytes per checksummed block; the last block of an entry is shorter."""


@dataclass(frozen=True, slots=True)
class Declaration:
    """One tensor as one rank declares it: what it is, and the extent this rank holds."""

    spec: TensorSpec
    extent: Extent


@dataclass(frozen=True, slots=True)
class WriteItem:
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
    """The identity of one save, the same on all ranks."""

    save_id: str
    step: int
    n_ranks: int
    block_bytes: int = BLOCK_BYTES


@dataclass(frozen=True, slots=True)
class FileRecord:
    """A data file as the manifest names it: path relative to the step, size, CRC32C of its header."""

    path: str
    nbytes: int
    header_crc: int


@dataclass(frozen=True, slots=True)
class WriteReport:
    """What one rank wrote.

    `nbytes` counts tensor bytes, without headers.  `per_rank` has the specs of this rank's own entries.
    """

    files: tuple[FileRecord, ...]
    nbytes: int
    n_entries: int


@dataclass(frozen=True, slots=True)
class StoredEntry:
    """Where an item landed: what it is, and file, byte offset and one CRC32C per block."""

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
    """A block whose bytes do not have the checksum they were written with, or are not there."""

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
