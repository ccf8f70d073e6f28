"""Tensors of a checkpoint piece by piece, in C order, so that none need fit into memory twice. Needs no MPI."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from hpcckpt.core.tensors import Extent, TensorSpec, itemsize
from hpcckpt.errors import HpcckptError
from hpcckpt.format import layout
from hpcckpt.restoring.reader import Array, StepReader, open_step, rank_name
from hpcckpt.rundir import pins

PIECE_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class StoredArray:
    """One array that a checkpoint holds: a tensor, or what one rank saved of a per-rank tensor.

    Attributes
    ----------
    name : str
        The tensor's name; for one rank's ``NAME#RANK``, as `hpcckpt.load` has it.
    spec : TensorSpec
        The tensor.
    shape : tuple of int
        Shape of this array.
    rank : int or None
        The rank, if it is one rank's.
    """

    name: str
    spec: TensorSpec
    shape: tuple[int, ...]
    rank: int | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the array."""
        return Extent.whole(self.shape).n_elements * itemsize(self.spec.dtype)


@contextmanager
def held_step(path: Path, threads: int = 1) -> Iterator[StepReader]:
    """Open a step, and keep retention away from it while the block runs, as far as the directory can be written."""
    reader_name = pins.reader_name()
    step = layout.parse_step(path.name)
    if step is not None:
        with suppress(HpcckptError):
            pins.pin(path.parent, step, reader_name)
    try:
        yield open_step(path, threads)
    finally:
        if step is not None:
            with suppress(HpcckptError):
                pins.unpin(path.parent, step, reader_name)


def stored_arrays(reader: StepReader, names: Iterable[str] | None = None) -> list[StoredArray]:
    """Return the arrays of these tensors, of all by default, in the order of their names. Independent."""
    found: list[StoredArray] = []
    for name in sorted(reader.specs if names is None else names):
        spec = reader.specs[name]
        if spec.kind != "per-rank":
            found.append(StoredArray(name, spec, spec.shape))
            continue
        entries = sorted(reader.index[name], key=lambda entry: entry.rank)
        found += [StoredArray(rank_name(name, each.rank), spec, each.item.extent.shape, each.rank) for each in entries]
    return found


def read_array(reader: StepReader, source: StoredArray) -> Array:
    """Return an array, whole and verified. Independent."""
    return reader.load(source.name) if source.rank is None else reader.load_rank(source.spec.name, source.rank)


def pieces(reader: StepReader, source: StoredArray, limit: int = PIECE_BYTES) -> Iterator[Array]:
    """Yield an array in pieces of about `limit` bytes that follow each other in C order, verified. Independent."""
    if source.rank is not None:
        yield reader.load_rank(source.spec.name, source.rank)
        return
    for box in split(Extent.whole(source.shape), itemsize(source.spec.dtype), limit):
        yield reader.load(source.name, box)


def split(box: Extent, width: int, limit: int = PIECE_BYTES) -> Iterator[Extent]:
    """Yield boxes of at most `limit` bytes, of elements of `width` bytes, that make up `box` in C order. Pure."""
    axis = next((axis for axis, length in enumerate(box.shape) if length > 1), None)
    if axis is None or box.n_elements * width <= limit:
        yield box
        return
    length = box.shape[axis]
    rows = max(1, limit // (box.n_elements // length * width))
    for start in range(0, length, rows):
        offset, shape = list(box.offset), list(box.shape)
        offset[axis] += start
        shape[axis] = min(rows, length - start)
        yield from split(Extent(tuple(offset), tuple(shape)), width, limit)
