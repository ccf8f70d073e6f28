"""HDF5 files made in memory: all of a file but its data.

HDF5 writes to a file-like object, which keeps what it gets.  Nothing is written into datasets, so that is the
structure: groups, attributes, and where each dataset's bytes have their place.  It goes into the real file as plain
bytes, whenever and in whatever order we want, and the library never has the real file open.

In a file lie, one after the other, the structure, the data of a plan, aligned, and what was added since: more
structure, more data, the table.  The library is to find no free space between, or it would put one thing into the gaps
of another: what it knows of free space it forgets when a file is closed, so structure is made first, and places are
given out after the file was opened again.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from hpcckpt.backends.hdf5 import library
from hpcckpt.backends.hdf5.arrangement import Alias, Linked, StoredDataset, Virtual
from hpcckpt.backends.hdf5.structure import TABLE, Attributes, Structure
from hpcckpt.backends.hdf5.table import TRAILER_BYTES, Span, Table, crc_of, seal

_PAGE = 1024


class MemoryFile(io.RawIOBase):
    """A file in memory of which only what was written takes room.

    Parameters
    ----------
    parts : sequence of (bytes, int)
        Its contents, and at which offsets.
    nbytes : int
        Its length.
    """

    def __init__(self, parts: Iterable[tuple[bytes, int]] = (), nbytes: int = 0) -> None:
        self._pages: dict[int, bytearray] = {}
        self._position = 0
        self.nbytes = 0
        for part, at in parts:
            self.seek(at)
            self.write(part)
        self.nbytes = max(nbytes, self.nbytes)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a position."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.nbytes}[whence]
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        """Return the position."""
        return self._position

    def write(self, data: Any) -> int:
        """Write at the position."""
        view = memoryview(data).cast("B")
        done = 0
        for page, inside, length in _pages_of(self._position, view.nbytes):
            self._pages.setdefault(page, bytearray(_PAGE))[inside : inside + length] = view[done : done + length]
            done += length
        self._position += done
        self.nbytes = max(self.nbytes, self._position)
        return done

    def readinto(self, buffer: Any) -> int:
        """Read at the position; what was never written is zeros."""
        view = memoryview(buffer).cast("B")
        wanted = min(view.nbytes, max(0, self.nbytes - self._position))
        view[:wanted] = self.cut(self._position, self._position + wanted)
        self._position += wanted
        return wanted

    def truncate(self, size: int | None = None) -> int:
        """Change the length."""
        self.nbytes = self._position if size is None else size
        return self.nbytes

    def flush(self) -> None:
        """Do nothing."""

    def cut(self, start: int, stop: int) -> bytes:
        """Return the bytes from `start` to `stop`."""
        empty = bytes(_PAGE)
        parts = (
            self._pages.get(page, empty)[inside : inside + length]
            for page, inside, length in _pages_of(start, stop - start)
        )
        return b"".join(parts)


def _pages_of(start: int, nbytes: int) -> Iterator[tuple[int, int, int]]:
    """Yield the pages of a part of a file: number, offset inside, length."""
    stop = start + nbytes
    while start < stop:
        page, inside = divmod(start, _PAGE)
        length = min(_PAGE - inside, stop - start)
        yield page, inside, length
        start += length


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """A file without its data, and without its table.

    Attributes
    ----------
    parts : tuple of (bytes, int)
        Its structure: the bytes that HDF5 needs, and their offsets.
    nbytes : int
        Its length.
    offsets : dict of str to int
        Where the bytes of each dataset are, by its path; 0 if it has none.
    data : tuple of tuple of int
        Which parts of the file are not structure.
    """

    parts: tuple[tuple[bytes, int], ...] = ()
    nbytes: int = 0
    offsets: Mapping[str, int] = field(default_factory=dict)
    data: tuple[Span, ...] = ()

    def image(self) -> MemoryFile:
        """Return the file."""
        return MemoryFile(self.parts, self.nbytes)


@contextmanager
def opened(where: Any, mode: str, **options: Any) -> Iterator[Structure]:
    """Open a file, in memory or on disk, for its structure to be made; HDF5 does not lock it."""
    file = library.load().File(where, mode, **library.without_locks(), **options)
    try:
        yield Structure(file)
    finally:
        file.close()


def extend(
    base: Layout,
    stored: Sequence[StoredDataset] = (),
    virtual: Iterable[Virtual] = (),
    linked: Iterable[Linked] = (),
    aliases: Iterable[Alias] = (),
    root: Attributes | None = None,
    alignment: int = 1,
) -> Layout:
    """Lay out more datasets, after those that exist. Independent.

    Parameters
    ----------
    base : Layout
        What is there; an empty one begins a file.
    stored : sequence of StoredDataset
        Datasets to be given places.
    virtual, linked, aliases : iterable
        Datasets and names without data.
    root : mapping, optional
        Attributes of the file.
    alignment : int
        Datasets of at least this many bytes begin at a multiple of it.
    """
    image = base.image()
    with opened(image, "r+" if base.nbytes else "w") as structure:
        structure.begin(root or {})
        for each in stored:
            structure.stored(each)
        for tensor in virtual:
            structure.virtual(tensor)
        for link in linked:
            structure.linked(link)
        for alias in aliases:
            structure.alias(alias)
    end = image.nbytes
    with opened(image, "r+", alignment_threshold=alignment, alignment_interval=alignment) as structure:
        added = {each.path: structure.allocate(each.path) for each in stored}
    parts = tuple((image.cut(*span), span[0]) for span in gaps(base.data, 0, end))
    data = (*base.data, (end, image.nbytes)) if image.nbytes > end else base.data
    return Layout(parts, image.nbytes, {**base.offsets, **added}, data)


def gaps(taken: Iterable[Span], start: int, stop: int) -> Iterator[Span]:
    """Yield the parts of a file from `start` to `stop` that are not taken. Pure."""
    for begin, end in sorted(taken):
        if start < begin <= stop:
            yield start, begin
        start = max(start, end)
    if start < stop:
        yield start, stop


@dataclass(frozen=True, slots=True, eq=False)
class Complete:
    """What is to be written around the data.

    Attributes
    ----------
    first : bytes
        What the file begins with.
    others : tuple of (bytes, int)
        The rest, and its offsets.
    nbytes : int
        Length of the file.
    table_crc : int
        CRC32C of its table.
    """

    first: bytes
    others: tuple[tuple[bytes, int], ...]
    nbytes: int
    table_crc: int


def finish(layout: Layout, root: Attributes, table: Table) -> Complete:
    """Give a file its attributes, and at its end the table. Independent.

    Parameters
    ----------
    layout : Layout
        The file.
    root : mapping
        Attributes that it has, with the values of this save, which are as long.
    table : Table
        What is where.
    """
    image = layout.image()
    spans = [(at, at + len(part)) for part, at in layout.parts]
    text_nbytes = len(table.text([*spans, (0, 0)], 0)) + TRAILER_BYTES
    with opened(image, "r+") as structure:
        structure.begin(root)
        structure.text(TABLE, text_nbytes)
    with opened(image, "r+") as structure:
        at = structure.allocate(TABLE)
    if image.nbytes != at + text_nbytes or at < layout.nbytes:
        raise AssertionError("the table must be the end of the file")
    spans.append((layout.nbytes, at))
    parts = [(image.cut(start, stop), start) for start, stop in spans]
    sealed = seal(table.text(spans, crc_of(part for part, _ in parts)), at)
    return Complete(parts[0][0], (*parts[1:], (sealed.text, at)), image.nbytes, sealed.crc)
