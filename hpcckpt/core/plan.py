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
    """One tensor on one rank: its description, and the extent of this rank.

    One that `is_value` holds an encoded value: if its shape differs between ranks, the value does.
    """

    spec: TensorSpec
    extent: Extent
    is_value: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes of this rank's extent."""
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
    """One save, the same on all ranks: its identity and file layout.

    Root's backend makes the file layout.
    """

    save_id: str
    step: int
    n_ranks: int
    block_bytes: int = BLOCK_BYTES
    file_layout: Any = None

    design = renamed("design", "file_layout")


@dataclass(frozen=True, slots=True)
class FullPlan:
    """What a checkpoint will contain, and which rank writes which parts of it.

    Attributes
    ----------
    tensors : tuple of TensorSpec
        All tensors, sorted by name; shapes of per-rank ones are rank 0's.
    items : tuple of tuple of WriteItem
        The entries of each rank. Per-rank values may have another size at each save.
    directory : pathlib.Path or None
        The run directory.
    """

    tensors: tuple[TensorSpec, ...]
    items: tuple[tuple[WriteItem, ...], ...]
    directory: Path | None = None


@dataclass(frozen=True, slots=True)
class StagingSlot:
    """A staging directory for a later save: its name, and the save's identity."""

    name: str
    save_id: str


@dataclass(frozen=True, slots=True)
class FileRecord:
    """A data file in the manifest: path relative to the step, size, header CRC32C.

    `save_id` is the save that wrote it, if that is older than the save of the manifest; else it is empty.
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
        Tensor bytes, without headers: of tensors that ranks share, and of per-rank tensors.
    linked_nbytes : int
        How many of these bytes were linked, not written.
    detail
        Anything that the backend on root needs to know about this rank.
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
    """An item, and where it was written: file, byte offset, CRC32C of each block."""

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
    """A block with missing bytes, or whose checksum changed since it was written.

    Without `is_proven` the reader may have looked in the wrong place, so the step may be whole.
    """

    tensor: str
    file: str
    offset: int
    nbytes: int
    reason: str
    is_proven: bool = True

    def __str__(self) -> str:
        end = self.offset + self.nbytes
        return f"tensor {self.tensor!r}: {self.reason} in {self.file}, bytes {self.offset} to {end}"


Index = Mapping[str, tuple[StoredEntry, ...]]
"""All entries of a checkpoint by tensor name."""


def block_count(nbytes: int, block_bytes: int) -> int:
    """Return the number of checksummed blocks in `nbytes`."""
    return math.ceil(nbytes / block_bytes)
