"""States of which every byte follows from step and version, and what must come back of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

import hpcckpt as hc
from hpcckpt.core.plan import Declaration
from hpcckpt.core.tensors import Extent, TensorSpec
from hpcckpt.state.tree import ADAPTERS, TensorLeaf
from hpcckpt.testing.ranks import ThreadCommunicator

ROWS = 7
Arrays = dict[str, np.ndarray[Any, Any]]


def _values(name: str, shape: tuple[int, ...], seed: tuple[int, ...], dtype: str = "float32") -> np.ndarray[Any, Any]:
    width = np.dtype(dtype).itemsize
    bits = np.random.default_rng([*seed, *name.encode()]).integers(0, 256, (*shape, width), np.uint8)
    return bits.view(dtype).reshape(shape)


@lru_cache(maxsize=128)
def _whole(step: int, version: int, *, is_big: bool) -> Arrays:
    seed = (step, version)
    found = {
        "identity": np.array([step, version]),
        "w": _values("w", (3001,), seed),
        "b": _values("b", (3,), seed, "float64"),
        "rows": _values("rows", (ROWS, 300), seed, "int16"),
        "frozen": _values("frozen", (5000,), (), "uint8"),
    }
    if is_big:  # more than one block of checksums
        found["big"] = _values("big", ((1 << 20) + 5000,), seed, "uint8")
    return found


class Kept:
    """An array that the program does not change, and that a save may hold without a copy: a framework's variable."""

    __module__ = "powerloss"  # an adapter is found by the first part of its classes' module

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array = array


def leaves(obj: Any, name: str) -> Iterator[TensorLeaf] | None:
    """Yield the leaf of a `Kept`; see `hpcckpt.state.tree.Adapter`."""
    if not isinstance(obj, Kept):
        return None
    spec = TensorSpec(name, obj.array.dtype.name, obj.array.shape, "replicated")
    declaration = Declaration(spec, Extent.whole(spec.shape))

    def assign(array: np.ndarray[Any, Any]) -> None:
        obj.array = array

    return iter([TensorLeaf(declaration, lambda: obj.array, assign, source=obj, holder=_hold)])


def _hold(sources: Sequence[Any]) -> list[np.ndarray[Any, Any]]:
    return [source.array for source in sources]


ADAPTERS[Kept.__module__] = __name__


def _own(step: int, version: int, rank: int) -> np.ndarray[Any, Any]:
    return _values("own", (3,), (step, version, rank))


def state_of(comm: ThreadCommunicator | None, step: int, version: int, *, is_big: bool) -> dict[str, Any]:
    """Return the state of a step as one rank holds it, in its own memory."""
    rank, size = (comm.rank, comm.size) if comm is not None else (0, 1)
    state: dict[str, Any] = {name: array.copy() for name, array in _whole(step, version, is_big=is_big).items()}
    begin, end = rank * ROWS // size, (rank + 1) * ROWS // size
    state["rows"] = hc.Sharded(state["rows"][begin:end].copy(), (ROWS, 300), (begin, 0))
    state["own"] = hc.PerRank(_own(step, version, rank))
    return state


def expected(step: int, version: int, n_ranks: int, *, is_big: bool) -> Arrays:
    """Return what `hpcckpt.load` gives of a step."""
    own = {f"own#{rank}": _own(step, version, rank) for rank in range(n_ranks)}
    return {**_whole(step, version, is_big=is_big), **own}


def is_same(loaded: Arrays, wanted: Arrays) -> bool:
    """Return True if two sets of arrays are equal bit for bit."""
    return loaded.keys() == wanted.keys() and all(
        (array.dtype, array.shape, array.tobytes()) == (wanted[name].dtype, wanted[name].shape, wanted[name].tobytes())
        for name, array in loaded.items()
    )
