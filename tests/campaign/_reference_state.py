"""States whose every bit follows from their step and version, held by any number of ranks.

A *version* numbers the attempts to save: what a step holds says which attempt it was, so that an abandoned attempt,
or an older content of a step that was saved twice, is never taken for the one that was committed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

import hpcckpt as hc
from hpcckpt.restoring.reader import rank_name
from hpcckpt.state import tree as snapshot
from hpcckpt.state.tree import Leaf, TensorLeaf

Array = np.ndarray[Any, Any]
TABLE = (7, 30)


def values(seed: Sequence[int], name: str, shape: tuple[int, ...], dtype: Any = np.float32) -> Array:
    """Return arbitrary bit patterns, NaNs among them, that differ for every seed and name."""
    rng = np.random.Generator(np.random.SFC64([*seed, *name.encode()]))
    count = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    return np.frombuffer(rng.bytes(count), dtype).reshape(shape).copy()


class Variable:
    """A tensor that is copied by an update if somebody holds it, and else updated in place: as in TensorFlow."""

    __module__ = "_reference_state"  # an adapter is found by the first part of its classes' module

    def __init__(self, array: Array) -> None:
        self._buffer = array.copy()

    def assign(self, new: Array) -> None:
        """Change the values."""
        if sys.getrefcount(self._buffer) > 2:  # the attribute's own, and the argument's
            self._buffer = new.copy()
        else:
            self._buffer[...] = new

    def view(self) -> Array:
        """Return a view, which holds the buffer for as long as it lives."""
        view = self._buffer[...]
        view.setflags(write=False)
        return view


def hold(variables: Sequence[Variable]) -> list[Array]:
    """Hold the values of variables without a copy."""
    return [variable.view() for variable in variables]


def leaves(variable: Variable, name: str) -> Iterator[Leaf]:
    """Yield the leaf of a variable: this module is the adapter of its class."""
    declaration = snapshot.declare(variable.view(), name, "replicated")
    yield TensorLeaf(declaration, variable.view, variable.assign, source=variable, holder=hold)


snapshot.ADAPTERS[Variable.__module__] = __name__


def _replicated(size: str, step: int, version: int) -> dict[str, Array]:
    seed = (step, version)
    found = {
        "version": np.array([step, version]),
        "w": values(seed, "w", (1501,)),
        "nest/b": values(seed, "b", (17,), np.float64),
        "nest/i": values(seed, "i", (3, 3), np.int64),
        "empty": np.empty((0, 4), np.int16),
    }
    if size != "small":
        found["big"] = values(seed, "big", ((5 << 19) + 4097,), np.uint8)
    return found


def _variables(size: str, step: int) -> dict[str, Array]:
    """Return tensors that are held: two that never change, one that does at times, one that always does."""
    if size != "variables":
        return {}
    return {
        "held/frozen": values([0], "frozen", ((1 << 20) + 77,), np.uint8),
        "held/too": values([0], "too", (3 << 17,)),
        "held/late": values([step // 4], "late", ((9 << 17) + 3,), np.uint8),
        "held/head": values([step], "head", (57,)),
    }


def columns(rank: int, n_ranks: int) -> slice:
    """Return which columns of the table a rank has."""
    return slice(TABLE[1] * rank // n_ranks, TABLE[1] * (rank + 1) // n_ranks)


class State:
    """The state of one rank, changed in place from step to step.

    Parameters
    ----------
    size : {"small", "large", "variables"}
        A few kilobytes; some megabytes; or also tensors that are held, most of which do not change.
    """

    def __init__(self, size: str, rank: int, n_ranks: int) -> None:
        self.size, self.rank, self.n_ranks = size, rank, n_ranks
        self.arrays = {name: np.zeros_like(array) for name, array in _replicated(size, 0, 0).items()}
        self.variables = {name: Variable(np.zeros_like(array)) for name, array in _variables(size, 0).items()}
        width = columns(rank, n_ranks)
        self.table = np.zeros((TABLE[0], width.stop - width.start), np.int64)
        self.own = hc.PerRank(np.zeros(rank + 3, np.uint16))
        self.moving = hc.RootOnly(np.zeros(9, np.float32))

    @property
    def tree(self) -> dict[str, Any]:
        """What is given to save() and restore()."""
        offset = (0, columns(self.rank, self.n_ranks).start)
        table = hc.Sharded(self.table, TABLE, offset)
        return {**self.arrays, **self.variables, "table": table, "own": self.own, "moving": self.moving}

    def become(self, step: int, version: int) -> None:
        """Take on the values of a step, in place."""
        for name, array in _replicated(self.size, step, version).items():
            self.arrays[name][...] = array
        for name, array in _variables(self.size, step).items():
            if self.variables[name].view().tobytes() != array.tobytes():  # what does not change is not touched
                self.variables[name].assign(array)
        self.table[...] = values((step, version), "table", TABLE, np.int64)[:, columns(self.rank, self.n_ranks)]
        self.own.value[...] = values((step, version, self.rank), "own", (self.rank + 3,), np.uint16)
        self.moving.value[...] = values((step, version, self.rank), "moving", (9,))

    @property
    def version(self) -> tuple[int, int]:
        """Which step and version it says that it is."""
        step, version = self.arrays["version"]
        return int(step), int(version)

    def differences(self, step: int, version: int, *, n_ranks_saved: int) -> list[str]:
        """Return the names of what is not what a restore of this step must give."""
        expected = State(self.size, self.rank, self.n_ranks)
        expected.become(step, version)
        pairs = {name: (array, expected.arrays[name]) for name, array in self.arrays.items()}
        pairs |= {name: (v.view(), expected.variables[name].view()) for name, v in self.variables.items()}
        pairs["table"] = self.table, expected.table
        if n_ranks_saved == self.n_ranks:
            pairs["own"] = self.own.value, expected.own.value
        if self.rank == 0:
            pairs["moving"] = self.moving.value, expected.moving.value
        return [name for name, (found, wanted) in pairs.items() if found.tobytes() != wanted.tobytes()]


def differences(loaded: dict[str, Array], size: str, step: int, version: int, n_ranks: int) -> list[str]:
    """Return the names of what `hpcckpt.load` gives otherwise than `n_ranks` ranks had saved it."""
    expected = {**_replicated(size, step, version), **_variables(size, step)}
    expected["table"] = values((step, version), "table", TABLE, np.int64)
    expected["moving"] = values((step, version, 0), "moving", (9,))
    for rank in range(n_ranks):
        expected[rank_name("own", rank)] = values((step, version, rank), "own", (rank + 3,), np.uint16)
    names = sorted(expected.keys() ^ loaded.keys())
    return names + [name for name in expected.keys() & loaded.keys() if not _same(loaded[name], expected[name])]


def _same(found: Any, wanted: Array) -> bool:
    array = np.asarray(found)
    return array.dtype == wanted.dtype and array.shape == wanted.shape and array.tobytes() == wanted.tobytes()
