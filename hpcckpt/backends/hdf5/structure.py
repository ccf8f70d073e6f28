"""Datasets, attributes and names in an open file, by h5py's low-level interface: ten times as fast as the other.

Every dataset has attributes that say what it is: ``kind`` and ``dtype`` as hpcckpt calls them, ``global_shape``;
``name`` where the tensor's is not the dataset's; ``offset`` of a box in its tensor; ``span`` of the elements of the
box; ``rank`` of a value that each rank has for itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hpcckpt.backends.hdf5 import library
from hpcckpt.backends.hdf5.arrangement import MAX_DIMS, RESERVED, Alias, Linked, StoredDataset, Virtual
from hpcckpt.backends.hdf5.types import file_shape, file_type
from hpcckpt.core.tensors import Extent

Attributes = Mapping[str, "str | int | Sequence[int]"]
TABLE = f"{RESERVED}/table"


class Structure:
    """What is made in one open file.

    Parameters
    ----------
    file : h5py.File
        Open for writing.
    """

    def __init__(self, file: Any) -> None:
        self._h5 = h5 = library.load()
        self._id = h5.h5g.open(file.id, b"/")
        self._scalar = h5.h5s.create(h5.h5s.SCALAR)
        self._lcpl = h5.h5p.create(h5.h5p.LINK_CREATE)
        self._lcpl.set_create_intermediate_group(True)
        self._lcpl.set_char_encoding(h5.h5t.CSET_UTF8)
        self._dcpl = self.creation()

    def creation(self) -> Any:
        """Return how datasets are created: contiguous, never filled, identical at each run."""
        h5 = self._h5
        dcpl = h5.h5p.create(h5.h5p.DATASET_CREATE)
        dcpl.set_layout(h5.h5d.CONTIGUOUS)
        dcpl.set_alloc_time(h5.h5d.ALLOC_TIME_LATE)
        dcpl.set_fill_time(h5.h5d.FILL_TIME_NEVER)
        dcpl.set_obj_track_times(False)
        return dcpl

    def stored(self, stored: StoredDataset, dcpl: Any = None) -> Any:
        """Create a dataset; return its identifier."""
        token = stored.spec.dtype
        space = self._space(file_shape(token, stored.shape))
        kind, _ = file_type(token)
        made = self._h5.h5d.create(self._id, stored.path.encode(), kind, space, dcpl or self._dcpl, self._lcpl)
        self.describe(made, _facts(stored))
        return made

    def virtual(self, virtual: Virtual) -> None:
        """Create a dataset that is put together of others."""
        token = virtual.spec.dtype
        kind, added = file_type(token)
        dcpl = self._h5.h5p.create(self._h5.h5p.DATASET_CREATE)
        dcpl.set_obj_track_times(False)
        shape = file_shape(token, virtual.spec.shape)
        for part in virtual.parts:
            target, source = self._space(shape), self._space(file_shape(token, part.shape))
            target.select_hyperslab((*part.target.offset, *(0 for _ in added)), (*part.target.shape, *added))
            if len(part.shape) + len(added) <= MAX_DIMS:
                source.select_hyperslab((*part.source.offset, *(0 for _ in added)), (*part.source.shape, *added))
            dcpl.set_virtual(target, _as_format(part.file), _as_format(f"/{part.path}"), source)
        space = self._space(shape)
        made = self._h5.h5d.create(self._id, virtual.path.encode(), kind, space, dcpl, self._lcpl)
        self.describe(made, _facts(StoredDataset(virtual.path, virtual.spec, Extent.whole(virtual.spec.shape))))

    def linked(self, linked: Linked) -> None:
        """Create a name for a dataset of another file."""
        links = self._id.links
        links.create_external(linked.path.encode(), linked.file.encode(), f"/{linked.target}".encode(), lcpl=self._lcpl)

    def alias(self, alias: Alias) -> None:
        """Create another name for a dataset of this file."""
        self._id.links.create_hard(alias.path.encode(), self._id, alias.target.encode(), lcpl=self._lcpl)

    def text(self, path: str, nbytes: int) -> None:
        """Create a dataset that is one string of a fixed length."""
        kind = self._text_type(nbytes)
        self._h5.h5d.create(self._id, path.encode(), kind, self._scalar, self._dcpl, self._lcpl)

    def _text_type(self, nbytes: int) -> Any:
        h5t = self._h5.h5t
        kind = h5t.C_S1.copy()
        kind.set_size(nbytes)
        kind.set_strpad(h5t.STR_NULLPAD)
        kind.set_cset(h5t.CSET_UTF8)
        return kind

    def begin(self, root: Attributes) -> None:
        """Give the file attributes, and the group of what is not a tensor."""
        if RESERVED.encode() not in self._id:
            self._h5.h5g.create(self._id, RESERVED.encode())
        self.describe(self._id, root)

    def describe(self, thing: Any, attributes: Attributes) -> None:
        """Give a dataset, or the file, attributes; one that is there gets another value, of the same size."""
        h5a = self._h5.h5a
        for name, value in attributes.items():
            data = np.array(
                value.encode() if isinstance(value, str) else value, None if isinstance(value, str) else "<i8"
            )
            key = name.encode()
            made = h5a.open(thing, key) if h5a.exists(thing, key) else self._attribute(thing, key, data)
            made.write(data, mtype=made.get_type())

    def _attribute(self, thing: Any, name: bytes, data: Any) -> Any:
        kind = self._text_type(data.dtype.itemsize) if data.dtype.kind == "S" else self._h5.h5t.STD_I64LE
        return self._h5.h5a.create(thing, name, kind, self._space(data.shape))

    def flush(self) -> None:
        """Hand all that is not written yet to the file."""
        self._h5.h5f.flush(self._id)

    def allocate(self, path: str) -> int:
        """Give a dataset its place in the file, by writing one element; return the offset, 0 if it has no bytes."""
        dataset = self._h5.h5d.open(self._id, path.encode())
        space, kind = dataset.get_space(), dataset.get_type()
        if space.get_select_npoints() == 0:
            return 0
        n_dims = space.get_simple_extent_ndims()
        if n_dims:
            space.select_hyperslab((0,) * n_dims, (1,) * n_dims)
        dataset.write(self._space((1,) * n_dims), space, np.zeros(kind.get_size(), np.uint8), kind)
        return int(dataset.get_offset())

    def offset(self, path: str) -> int:
        """Return where the bytes of a dataset begin."""
        return int(self._h5.h5d.open(self._id, path.encode()).get_offset())

    def chunk_places(self, path: str, shape: tuple[int, ...]) -> tuple[tuple[int, int, int], ...]:
        """Return offset, bytes and filter mask of each chunk of a dataset, in C order."""
        dataset = self._h5.h5d.open(self._id, path.encode())
        found = (
            dataset.get_chunk_info_by_coord(corner)
            for corner in itertools.product(
                *(range(0, length, side) for length, side in zip(dataset.shape, shape, strict=True))
            )
        )
        return tuple((int(chunk.byte_offset), int(chunk.size), int(chunk.filter_mask)) for chunk in found)

    def _space(self, shape: tuple[int, ...]) -> Any:
        return self._h5.h5s.create_simple(shape) if shape else self._scalar


def _facts(stored: StoredDataset) -> Attributes:
    spec = stored.spec
    facts: dict[str, str | int | Sequence[int]] = {"kind": spec.kind, "dtype": spec.dtype}
    global_shape = stored.extent.shape if stored.rank is not None else spec.shape
    if global_shape:
        facts["global_shape"] = global_shape
    if stored.path != spec.name:
        facts["name"] = spec.name
    if stored.rank is not None:
        facts["rank"] = stored.rank
    elif stored.extent != Extent.whole(spec.shape):
        facts["offset"] = stored.extent.offset
    if stored.span is not None:
        facts["span"] = stored.span
    return facts


def _as_format(name: str) -> bytes:
    """Return the name of a virtual dataset's source, which HDF5 takes for a printf format. Pure."""
    return name.replace("%", "%%").encode()
