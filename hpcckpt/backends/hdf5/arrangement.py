"""Which datasets a checkpoint has, and what they are called. Pure, and without h5py.

A tensor is one dataset with the tensor's name, if each part that a rank writes is contiguous in it.  Otherwise each box
that ranks hold is a separate dataset in the reserved group, and the tensor is a *virtual dataset* made of them: so
whatever a rank writes is contiguous in the file, and is read as fast as it was written.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from hpcckpt.backends.entries import entry_names
from hpcckpt.collective.sharding import boxes_of_span, flat_index
from hpcckpt.core.plan import FullPlan, WriteItem
from hpcckpt.core.tensors import Extent, TensorSpec, itemsize
from hpcckpt.errors import Problem, StateError, list_problems

RESERVED = "__hpcckpt__"
"""The group of everything that is not a tensor."""
MAX_DIMS = 32
"""More axes HDF5 does not have; what has more is stored flat."""
HERE = "."
"""The file that a virtual dataset itself is in."""


@dataclass(frozen=True, slots=True)
class StoredDataset:
    """A dataset with bytes in the file.

    Attributes
    ----------
    path : str
        Its name in the file.
    spec : TensorSpec
        The tensor that it is, or is a part of.
    extent : Extent
        Which box of the tensor.
    span : tuple of int or None
        Which elements of the box, where it is not the whole box.
    rank : int or None
        Whose it is, if each rank has its own.
    """

    path: str
    spec: TensorSpec
    extent: Extent
    span: tuple[int, int] | None = None
    rank: int | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the dataset."""
        return self.extent.shape if self.span is None else (self.span[1] - self.span[0],)

    @property
    def nbytes(self) -> int:
        """Bytes of the dataset."""
        return math.prod(self.shape) * itemsize(self.spec.dtype)


@dataclass(frozen=True, slots=True)
class VirtualSource:
    """A box of a virtual dataset, and where its elements are: the same number, in the same order, of another one."""

    file: str
    path: str
    shape: tuple[int, ...]
    source: Extent
    target: Extent


@dataclass(frozen=True, slots=True)
class Virtual:
    """A dataset put together of others."""

    path: str
    spec: TensorSpec
    parts: tuple[VirtualSource, ...]


@dataclass(frozen=True, slots=True)
class Linked:
    """A name for a dataset of another file."""

    path: str
    file: str
    target: str


@dataclass(frozen=True, slots=True)
class Alias:
    """Another name for a dataset of the same file."""

    path: str
    target: str


@dataclass(frozen=True, slots=True)
class Place:
    """The dataset that a tensor is, and, if it is put together of boxes, those of the boxes."""

    path: str
    boxes: Mapping[Extent, str] | None = None

    def position(self, item: WriteItem) -> tuple[str, int]:
        """Return the dataset that an item is in, and at which element of it the item begins. Pure."""
        if self.boxes is not None:
            return self.boxes[item.extent], item.start
        return self.path, item.start + first_element(item)


def first_element(item: WriteItem) -> int:
    """Return at which element of its tensor the box of an item begins. Pure."""
    return flat_index(item.spec.shape, item.extent.offset) if item.extent.n_elements else 0


@dataclass(frozen=True, slots=True)
class Arrangement:
    """The datasets of a file.

    Attributes
    ----------
    stored : tuple of StoredDataset
        Those of tensors that ranks share.
    own : tuple of StoredDataset
        Those of values that each rank has for itself, as they were when the plan was made.
    virtual : tuple of Virtual
        Tensors that are put together of others.
    places : dict of str to Place
        In which dataset a shared tensor is, by its name.
    """

    stored: tuple[StoredDataset, ...]
    own: tuple[StoredDataset, ...] = ()
    virtual: tuple[Virtual, ...] = ()
    places: Mapping[str, Place] = field(default_factory=dict)


def is_stretch(box: Extent, shape: tuple[int, ...]) -> bool:
    """Return True if the elements of a box are contiguous in a tensor of `shape` in C order."""
    if box.n_elements == 0:
        return True
    last = flat_index(shape, [start + length - 1 for start, length in zip(box.offset, box.shape, strict=True)])
    return last + 1 - flat_index(shape, box.offset) == box.n_elements


def arrange(plan: FullPlan, whole: Callable[[TensorSpec], bool] = lambda _: False) -> Arrangement:
    """Return the datasets of one file that all ranks write.

    Parameters
    ----------
    plan : FullPlan
        Who writes what.
    whole : callable
        Says which tensors are one dataset anyhow.

    Raises
    ------
    StateError
        Naming the tensors that are called like what is reserved.
    """
    check_names(plan.tensors)
    shared = [spec for spec in plan.tensors if spec.kind != "per-rank"]
    own = [(item, rank) for rank, items in enumerate(plan.items) for item in items if item.spec.kind == "per-rank"]
    wanted = [*(spec.name for spec in shared), *(own_name(item.spec.name, rank) for item, rank in own)]
    paths = free_paths(wanted)
    boxes = _boxes(plan.items)
    stored: list[StoredDataset] = []
    virtual: list[Virtual] = []
    places: dict[str, Place] = {}
    for number, (spec, path) in enumerate(zip(shared, paths, strict=False)):
        if whole(spec) or all(is_stretch(box, spec.shape) for box in boxes[spec.name]):
            stored.append(StoredDataset(path, spec, Extent.whole(spec.shape)))
            places[spec.name] = Place(path)
        else:
            parts = [StoredDataset(box_path(number, box), spec, box) for box in boxes[spec.name]]
            stored += parts
            sources = tuple(source for part in parts for source in _parts(HERE, part))
            virtual += [Virtual(path, spec, sources)] if len(spec.shape) <= MAX_DIMS else []
            places[spec.name] = Place(path, {part.extent: part.path for part in parts})
    own_stored = tuple(
        StoredDataset(path, item.spec, item.extent, rank=rank)
        for (item, rank), path in zip(own, paths[len(shared) :], strict=True)
    )
    return Arrangement(tuple(stored), own_stored, tuple(virtual), places)


def check_names(tensors: Iterable[TensorSpec]) -> None:
    """Refuse tensors that are called like what is reserved.

    Raises
    ------
    StateError
        Naming them.
    """
    problems = [
        Problem(repr(spec.name), f"the group {RESERVED} is where the backend 'hdf5' keeps its own; rename the tensor")
        for spec in tensors
        if spec.name.partition("/")[0] == RESERVED
    ]
    if problems:
        raise StateError(list_problems(problems))


def own_name(name: str, rank: int) -> str:
    """Return what a rank's own value is called, as `hpcckpt.load` calls it."""
    return f"{name}#{rank}"


def box_path(number: int, box: Extent) -> str:
    """Return the path of a box of the tensor with this number."""
    ranges = ",".join(f"{start}:{start + length}" for start, length in zip(box.offset, box.shape, strict=True))
    return f"{RESERVED}/boxes/{number}/{ranges}"


def _boxes(items: Sequence[Sequence[WriteItem]]) -> dict[str, list[Extent]]:
    """Return the boxes that ranks hold of each shared tensor, each once."""
    found: dict[str, dict[Extent, None]] = defaultdict(dict)
    for theirs in items:
        for item in theirs:
            if item.spec.kind != "per-rank":
                found[item.spec.name][item.extent] = None
    return defaultdict(list, {name: sorted(boxes, key=lambda box: box.offset) for name, boxes in found.items()})


def free_paths(wanted: Sequence[str]) -> list[str]:
    """Return a path for each name: in HDF5 none can be a dataset and a group, and none can be given twice."""
    groups = {RESERVED}
    for name in wanted:
        at = name.find("/")
        while at >= 0:
            groups.add(name[:at])
            at = name.find("/", at + 1)
    taken = {name for name in wanted if name not in groups}
    given: set[str] = set()
    paths = []
    for name in wanted:
        path = name
        if path in groups or path in given:
            while path in groups or path in taken:
                path += "~"
        taken.add(path)
        given.add(path)
        paths.append(path)
    return paths


# -- one file for each rank ------------------------------------------------------------------------


def arrange_rank(items: Sequence[WriteItem], rank: int) -> tuple[StoredDataset, ...]:
    """Return the datasets of the file of one rank: one for each item, in their order."""
    check_names(item.spec for item in items)
    paths = free_paths(entry_names(items))
    return tuple(_stored_item(item, path, rank) for item, path in zip(items, paths, strict=True))


def _stored_item(item: WriteItem, path: str, rank: int) -> StoredDataset:
    is_whole_box = (item.start, item.stop) == (0, item.extent.n_elements)
    span = None if is_whole_box else (item.start, item.stop)
    return StoredDataset(path, item.spec, item.extent, span, rank if item.spec.kind == "per-rank" else None)


def arrange_master(
    tensors: Sequence[TensorSpec], files: Mapping[str, Sequence[StoredDataset]]
) -> tuple[tuple[StoredDataset, ...], tuple[Virtual, ...], tuple[Linked, ...]]:
    """Return what puts the files of all ranks together: empty tensors, virtual ones, and names.

    Parameters
    ----------
    tensors : sequence of TensorSpec
        All tensors.
    files : dict of str to sequence of StoredDataset
        The datasets of each file, by its name.
    """
    found: dict[tuple[str, int | None], list[tuple[str, StoredDataset]]] = defaultdict(list)
    for file, every in files.items():
        for stored in every:
            found[stored.spec.name, stored.rank].append((file, stored))
    shared = [spec for spec in tensors if spec.kind != "per-rank"]
    own = sorted((name, rank) for name, rank in found if rank is not None)
    paths = free_paths([*(spec.name for spec in shared), *(own_name(name, rank) for name, rank in own)])
    empty, virtual, linked = [], [], []
    for spec, path in zip(shared, paths, strict=False):
        parts = tuple(part for file, stored in found[spec.name, None] for part in _parts(file, stored))
        if math.prod(spec.shape) == 0:
            empty.append(StoredDataset(path, spec, Extent.whole(spec.shape)))
        elif 0 < len(spec.shape) <= MAX_DIMS:
            virtual.append(Virtual(path, spec, parts))
        elif len(parts) == 1:  # HDF5 has no virtual scalars
            linked.append(Linked(path, parts[0].file, parts[0].path))
    for key, path in zip(own, paths[len(shared) :], strict=True):
        ((file, stored),) = found[key]
        linked.append(Linked(path, file, stored.path))
    return tuple(empty), tuple(virtual), tuple(linked)


def _parts(file: str, stored: StoredDataset) -> Iterable[VirtualSource]:
    """Yield the boxes of a tensor that a dataset holds, and where in the dataset they are."""
    if stored.span is None:
        yield VirtualSource(file, stored.path, stored.shape, Extent.whole(stored.shape), stored.extent)
        return
    position = 0
    for box in boxes_of_span(stored.extent.shape, *stored.span):
        offset = tuple(a + b for a, b in zip(box.offset, stored.extent.offset, strict=True))
        source = Extent((position,), (box.n_elements,))
        yield VirtualSource(file, stored.path, stored.shape, source, Extent(offset, box.shape))
        position += box.n_elements
