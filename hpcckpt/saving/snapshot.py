"""The state as it is while it is written: buffers that do not change any more, or copies of those that may change.

What a framework copies on write is held, not copied (:data:`hpcckpt.state.tree.Holder`).  Everything else is
copied by native threads into an arena: memory that is allocated once and used again, because the first
touch of fresh memory costs many times a copy into memory that is warm.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hpcckpt import native
from hpcckpt.backends.base import Bytes, Payload
from hpcckpt.core.plan import WriteItem
from hpcckpt.core.tensors import itemsize
from hpcckpt.native.arena import ArenaPool
from hpcckpt.state.tree import Array, Holder, StateTree, TensorLeaf, as_bytes

ALIGNMENT = 64


@dataclass(slots=True, eq=False)
class Snapshot:
    """The values that one rank will write, which do not change until then.

    Attributes
    ----------
    payloads : list of Payload
        In the order of the items.
    is_view : bool
        Whether they are the state's own memory, so that the caller must wait.
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


def view(tree: StateTree, items: Sequence[WriteItem]) -> Snapshot:
    """Return the state's own memory: only for as long as the caller waits. Independent."""
    names = dict.fromkeys(item.spec.name for item in items)
    held = held_arrays({name: tree.tensors[name] for name in names})
    read = {name: held[name] if name in held else tree.tensors[name].read() for name in names}
    payloads = [Payload(i, _part(read[i.spec.name], i), is_held=i.spec.name in held) for i in items]
    return Snapshot(payloads, is_view=True)


def take(tree: StateTree, items: Sequence[WriteItem], pool: ArenaPool, threads: int) -> Snapshot:
    """Return values that stay as they are whatever the program does to the state. Independent."""
    held = held_arrays({item.spec.name: tree.tensors[item.spec.name] for item in items})
    copied_nbytes = sum(_aligned(item.nbytes) for item in items if item.spec.name not in held)
    arena = pool.take(copied_nbytes) if copied_nbytes else None
    payloads, copies, position = [], [], 0
    for item in items:
        array = held.get(item.spec.name)
        data = _part(tree.tensors[item.spec.name].read() if array is None else array, item)
        if array is None and arena is not None:
            source, data = data, arena.view(position, item.nbytes)
            copies.append((source, data))
            position += _aligned(item.nbytes)
        payloads.append(Payload(item, data, is_held=array is not None))
    if copies:
        native.copy_pieces(copies, threads)
    return Snapshot(payloads, arena=arena)


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
    return [name for name, leaf in tree.tensors.items() if leaf.declaration.spec.kind == "replicated"]


def replica_checksums(tree: StateTree) -> Callable[[], list[int]]:
    """Return a function that returns the CRC32C of every replicated tensor as it is now. Independent.

    What can be held is held, for the function to read later; the rest is read at once.
    """
    leaves = {name: tree.tensors[name] for name in replica_names(tree)}
    held = held_arrays(leaves)
    known = {name: native.crc32c(as_bytes(leaf.read())) for name, leaf in leaves.items() if name not in held}
    return lambda: [known[name] if name in known else native.crc32c(as_bytes(held[name])) for name in leaves]
