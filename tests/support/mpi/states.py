"""States whose every value follows from a seed, so that any rank count can tell whether it came back."""

from __future__ import annotations

from typing import Any

import numpy as np

import hpcckpt as hc
from hpcckpt.collective.communicator import Communicator

SHARDED = {"s0": ((11, 3), 0), "s1": ((5, 13), 1), "s2": ((2, 3, 7), 2), "few": ((3, 4), 0)}
"""Name -> global shape and split axis; 7, 11 and 13 divide by nothing, `few` leaves ranks without a part."""


def values(name: str, shape: tuple[int, ...], seed: int, dtype: str = "float32") -> np.ndarray[Any, Any]:
    """Return the whole tensor of a name: different for every name and seed."""
    bits = np.random.default_rng([seed, *name.encode()]).integers(0, 256, (*shape, np.dtype(dtype).itemsize), np.uint8)
    return bits.view(dtype).reshape(shape)


def replicated(seed: int) -> dict[str, Any]:
    """Return tensors that are the same on all ranks; bit patterns are arbitrary, NaNs among them."""
    return {
        "w": values("w", (37, 5), seed),
        "nest": {"b": values("b", (1,), seed, "float64"), "i": values("i", (3, 3), seed, "int64")},
        "empty": np.empty((0, 4), np.float32),
    }


def extent(shape: tuple[int, ...], axis: int, rank: int, size: int) -> tuple[slice, ...]:
    """Return the part of a tensor that falls to a rank: uneven where the axis does not divide."""
    begin, end = rank * shape[axis] // size, (rank + 1) * shape[axis] // size
    return tuple(slice(begin, end) if a == axis else slice(0, n) for a, n in enumerate(shape))


def shards(seed: int, rank: int, size: int, turn: int = 0) -> dict[str, Any]:
    """Return this rank's parts; `turn` moves the split to another axis than the usual one."""
    parts = {}
    for name, (shape, axis) in SHARDED.items():
        box = extent(shape, (axis + turn) % len(shape), rank, size)
        array = values(name, shape, seed, "int16")[box].copy()
        parts[name] = hc.Sharded(array, shape, tuple(s.start for s in box))
    return parts


def state_of(comm: Communicator | Any, seed: int, turn: int = 0) -> dict[str, Any]:
    """Return the state of a seed as one rank holds it."""
    rank, size = (comm.rank, comm.size)
    return {**replicated(seed), "sharded": shards(seed, rank, size, turn), "seed": seed}


def differences(one: Any, other: Any, where: str = "") -> list[str]:
    """Return the names under which two states differ in any bit."""
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        return [text for key in one for text in differences(one[key], other[key], f"{where}/{key}")]
    if isinstance(one, hc.Sharded):
        return differences(one.array, other.array, where)
    if isinstance(one, np.ndarray):
        same = one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
        return [] if same else [where]
    return [] if one == other else [where]
