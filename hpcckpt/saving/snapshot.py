"""The state as it is while it is written: buffers that do not change any more, or copies of those that may change.

What a framework copies on write is held, not copied (:data:`hpcckpt.state.tree.Holder`).  Everything else is
copied into an arena, by native threads or, from an accelerator, by :data:`hpcckpt.state.tree.Stager`.  An arena is
memory that is allocated once and used again, because the first touch of fresh memory costs many times a copy into
memory that is warm.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from hpcckpt import native
from hpcckpt.backends.base import Bytes, Payload
from hpcckpt.core.dtypes import has_x87
from hpcckpt.core.plan import WriteItem
from hpcckpt.core.tensors import itemsize
from hpcckpt.native.arena import ArenaPool
from hpcckpt.state.tree import Array, Holder, StagedPart, Stager, StateTree, TensorLeaf, as_bytes

ALIGNMENT = 64
BATCH_BYTES = 256 << 20
"""How much is copied at a time: what `read` had to make contiguous is a copy already, and is freed with its batch."""


@dataclass(slots=True, eq=False)
class Snapshot:
    """The values that one rank will write, which do not change until then.

    Attributes
    ----------
    payloads : list of Payload
        In the order of the items.
    is_view : bool
        Whether some are the state's own memory, so that the caller must wait.
    arena : Arena or None
        Where the copies are, until they are released.
    interrupt : BaseException or None
        Of a view: what ended the caller's wait, so that the state may have changed.
    """

    payloads: list[Payload]
    is_view: bool = False
    arena: native.Arena | None = None
    interrupt: BaseException | None = None

    def release(self, pool: ArenaPool) -> None:
        """Return the memory of the copies; may be repeated. Independent."""
        arena, self.arena = self.arena, None
        if arena is not None:
            pool.give_back(arena)


def view(tree: StateTree, items: Sequence[WriteItem], pool: ArenaPool, threads: int) -> Snapshot:
    """Return the state's own memory, where it is the host's: only for as long as the caller waits. Independent."""
    return _snapshot(tree, items, pool, threads, is_view=True)


def take(tree: StateTree, items: Sequence[WriteItem], pool: ArenaPool, threads: int) -> Snapshot:
    """Return values that stay as they are whatever the program does to the state. Independent."""
    return _snapshot(tree, items, pool, threads, is_view=False)


def _snapshot(tree: StateTree, items: Sequence[WriteItem], pool: ArenaPool, threads: int, *, is_view: bool) -> Snapshot:
    leaves = {item.spec.name: tree.tensors[item.spec.name] for item in items}
    arrays = held_arrays(leaves)
    if is_view:
        arrays |= {n: leaf.read() for n, leaf in leaves.items() if leaf.holder is None and leaf.stager is None}
    nbytes = sum(_aligned(item.nbytes) for item in items if item.spec.name not in arrays)
    arena = pool.take(nbytes) if nbytes else None
    payloads, position = [], 0
    copies = _Copies(threads)
    staged: dict[Stager, list[StagedPart]] = defaultdict(list)
    try:
        for item in items:
            leaf, array = leaves[item.spec.name], arrays.get(item.spec.name)
            if array is None and arena is not None:
                data = arena.view(position, item.nbytes)
                position += _aligned(item.nbytes)
                if leaf.stager is None:
                    copies.add(leaf.read(), item, data)
                else:
                    staged[leaf.stager].append(StagedPart(leaf.source, item.start, item.stop, data))
            else:
                data = _part(leaf.read() if array is None else array, item)
            payloads.append(Payload(item, data, is_held=leaf.holder is not None))
        for stager, parts in staged.items():
            stager(parts, arena)
        copies.make()
    except BaseException:
        if arena is not None:
            pool.give_back(arena)
        raise
    return Snapshot(payloads, is_view=is_view, arena=arena)


class _Copies:
    """Copies of parts of arrays, made in batches by native threads."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._pairs: list[tuple[Bytes, Bytes]] = []
        self._nbytes = 0

    def add(self, array: Array, item: WriteItem, target: Bytes) -> None:
        self._pairs.append((_part(array, item), target))
        self._nbytes += array.nbytes
        if self._nbytes >= BATCH_BYTES:
            self.make()

    def make(self) -> None:
        if self._pairs:
            native.copy_pieces(self._pairs, self._threads)
        self._pairs, self._nbytes = [], 0


def held_arrays(leaves: dict[str, TensorLeaf]) -> dict[str, Array]:
    """Return the values of the leaves that can be held, by name; each holder is called once. Independent."""
    by_holder: dict[Holder, list[str]] = defaultdict(list)
    for name, leaf in leaves.items():
        if leaf.holder is not None:
            by_holder[leaf.holder].append(name)
    return {
        name: array
        for holder, names in by_holder.items()
        for name, array in zip(names, holder([leaves[name].source for name in names]), strict=True)
    }


def cut(whole: Snapshot, items: Sequence[WriteItem]) -> Snapshot:
    """Return a snapshot of parts of the tensors that another one has whole; it has the arena now. Independent."""
    data = {payload.item.spec.name: payload.data for payload in whole.payloads}
    arena, whole.arena = whole.arena, None
    return Snapshot([Payload(item, _span(data[item.spec.name], item)) for item in items], arena=arena)


def _part(array: Array, item: WriteItem) -> Bytes:
    """Return the bytes of an item of the box that an array holds."""
    is_whole = item.stop - item.start == array.size
    return as_bytes(array if is_whole else array.reshape(-1)[item.start : item.stop])


def _span(data: Bytes, item: WriteItem) -> Bytes:
    width = itemsize(item.spec.dtype)
    return data[item.start * width : item.stop * width]


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


# -- comparing replicas --------------------------------------------------------------------------


def replica_names(tree: StateTree) -> list[str]:
    """Return the names of the tensors that are to be equal on all ranks. Independent."""
    return [name for name, leaf in tree.tensors.items() if leaf.is_compared]


def replica_checksums(tree: StateTree) -> Callable[[], list[int]]:
    """Return a function that returns the CRC32C of every tensor that is to be equal on all ranks. Independent.

    What can be held is held, and tensors of an accelerator are copied, for the function to read later; the rest is read
    at once.
    """
    leaves = {name: tree.tensors[name] for name in replica_names(tree)}
    held = held_arrays(leaves) | {name: leaf.read() for name, leaf in leaves.items() if leaf.stager is not None}
    known = {name: _checksum(leaf.compared()) for name, leaf in leaves.items() if name not in held}
    return lambda: [known[name] if name in known else _checksum(held[name]) for name in leaves]


def _checksum(array: Array) -> int:
    """Return a CRC32C that is the same for equal values: some bytes of a long double mean nothing on x86. Pure."""
    data = as_bytes(array)
    if array.dtype.type in (np.longdouble, np.clongdouble) and has_x87():
        data = np.ascontiguousarray(data.reshape(-1, np.dtype(np.longdouble).itemsize)[:, :_NBYTES_X87])
    return native.crc32c(data)


_NBYTES_X87 = 10
