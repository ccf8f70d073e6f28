"""A state held still while it is written: buffers that nobody changes, or copies of those that may change.

What a framework copies on write is held, not copied (:data:`hpcckpt.snapshot.Holder`).  Everything else is
copied by native threads into an arena: memory that is allocated once and used again, because the first
touch of fresh memory costs many times a copy into memory that is warm.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hpcckpt import native
from hpcckpt.backends.base import Bytes, Payload
from hpcckpt.plan import WriteItem
from hpcckpt.snapshot import Array, Holder, StateTree, TensorLeaf, as_bytes
from hpcckpt.tensors import itemsize

ALIGNMENT = 64


class ArenaPool:
    """Arenas that are used again, one for each save that may be under way.

    Parameters
    ----------
    threads : int
        Native threads that touch a new arena.
    """

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._free: list[native.Arena] = []

    def take(self, nbytes: int) -> native.Arena:
        """Return an arena of at least `nbytes` that nobody uses. Independent."""
        while self._free:
            arena = self._free.pop()
            if arena.nbytes >= nbytes:
                return arena
        return native.Arena(nbytes, self._threads)

    def give_back(self, arena: native.Arena) -> None:
        """Let the next save have it. Independent."""
        self._free.append(arena)


@dataclass(frozen=True, slots=True, eq=False)
class Held:
    """What one rank will write, held still.

    Attributes
    ----------
    payloads : list of Payload
        In the order of the items.
    is_live : bool
        Whether they look at the state's own memory, so that the caller must wait.
    arena : Arena or None
        Where the copies are.
    """

    payloads: list[Payload]
    is_live: bool = False
    arena: native.Arena | None = None


def live(tree: StateTree, items: Sequence[WriteItem]) -> Held:
    """Return payloads that look at the state's own memory: only for as long as the caller waits. Independent."""
    names = dict.fromkeys(item.spec.name for item in items)
    held = held_arrays({name: tree.tensors[name] for name in names})
    read = {name: held[name] if name in held else tree.tensors[name].read() for name in names}
    payloads = [Payload(i, _part(read[i.spec.name], i), is_held=i.spec.name in held) for i in items]
    return Held(payloads, is_live=True)


def hold(tree: StateTree, items: Sequence[WriteItem], pool: ArenaPool, threads: int) -> Held:
    """Return payloads that stay as they are whatever the program does to the state. Independent."""
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
    return Held(payloads, arena=arena)


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


def cut(held: Held, items: Sequence[WriteItem]) -> Held:
    """Return payloads of parts of what is held whole. Independent."""
    whole = {payload.item.spec.name: payload.data for payload in held.payloads}
    return Held([Payload(item, _span(whole[item.spec.name], item)) for item in items], arena=held.arena)


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
