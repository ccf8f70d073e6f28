"""What a state may hold of its own, as leaves: arrays, shards, what each rank has for itself, JSON."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hpcckpt.dtypes import dtype_token, numpy_dtype
from hpcckpt.errors import ShardingError, StateError
from hpcckpt.leaves import Array, Assign, TensorLeaf, join
from hpcckpt.plan import Declaration
from hpcckpt.tensors import Extent, Kind, TensorSpec, is_text

# -- what users wrap values in -------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Sharded:
    """This rank's part of a tensor that is spread over ranks.

    Parameters
    ----------
    array : array_like
        The values this rank holds, shape of the box.
    global_shape : sequence of int
        Shape of the whole tensor, in elements.
    offset : sequence of int
        Where the box begins in it, one number per axis.

    Raises
    ------
    ShardingError
        If the box does not lie inside the tensor.
    """

    array: Any
    global_shape: Sequence[int]
    offset: Sequence[int]

    def __post_init__(self) -> None:
        object.__setattr__(self, "global_shape", tuple(map(int, self.global_shape)))
        object.__setattr__(self, "offset", tuple(map(int, self.offset)))
        shape = tuple(map(int, np.shape(self.array)))
        if not Extent(tuple(self.offset), shape).fits(tuple(self.global_shape)):
            raise ShardingError(
                f"a shard of shape {shape} at offset {self.offset} does not fit a tensor of shape {self.global_shape}"
            )


@dataclass(slots=True, eq=False)
class PerRank:
    """A value that each rank has for itself: an array, or a JSON value (RNG state, iterator position).

    On restore with the same rank count each rank gets its own back; else it is left alone and a
    warning says so.
    """

    value: Any


@dataclass(slots=True, eq=False)
class RootOnly:
    """An array that may differ between ranks, of which rank 0's counts (BatchNorm statistics)."""

    value: Any


@dataclass(slots=True, eq=False)
class Parts:
    """Some parts of a state, by name: whatever else a checkpoint has is not asked for when they are restored."""

    parts: Mapping[str, Any]


# -- JSON ----------------------------------------------------------------------------------------

MAX_JSON_DEPTH = 100
_MAX_JSON_INT = 1 << 4096  # readers limit the digits they convert


def is_json(value: Any, room: int = MAX_JSON_DEPTH) -> bool:
    """Say whether a value can be stored as JSON: plain scalars, lists, dicts with string keys; not too deep."""
    if isinstance(value, np.generic) or room == 0:
        return False
    if isinstance(value, str):
        return is_text(value)
    if isinstance(value, int):
        return -_MAX_JSON_INT < value < _MAX_JSON_INT
    if isinstance(value, list | tuple):
        return all(is_json(item, room - 1) for item in value)
    if isinstance(value, dict):
        return all(isinstance(k, str) and is_text(k) and is_json(v, room - 1) for k, v in value.items())
    return value is None or isinstance(value, float)


# -- arrays --------------------------------------------------------------------------------------


def plain(array: Array) -> Array:
    """Return `array` C-contiguous and little-endian; itself if it is so already."""
    contiguous = np.ascontiguousarray(array).reshape(np.shape(array))
    return contiguous.astype(numpy_dtype(dtype_token(contiguous.dtype)), copy=False)


def declare(
    array: Any, name: str, kind: Kind, extent: Extent | None = None, shape: Sequence[int] | None = None
) -> Declaration:
    """Return the declaration of an array-like with ``dtype`` and ``shape``."""
    if extent is None and shape is None:
        return _declaration_of_whole(name, np.dtype(array.dtype), tuple(map(int, array.shape)), kind)
    own = tuple(map(int, array.shape))
    spec = TensorSpec(name, dtype_token(np.dtype(array.dtype)), tuple(shape) if shape is not None else own, kind)
    return Declaration(spec, extent or Extent.whole(own))


@functools.lru_cache(maxsize=1 << 16)
def _declaration_of_whole(name: str, dtype: np.dtype[Any], shape: tuple[int, ...], kind: Kind) -> Declaration:
    """Return what a whole tensor is declared as; the same object for the same tensor at every save."""
    return Declaration(TensorSpec(name, dtype_token(dtype), shape, kind), Extent.whole(shape))


class ArrayLeaf(TensorLeaf):
    """The leaf of a writable NumPy array, restored in place."""

    __slots__ = ()

    def __init__(self, array: Array, name: str, kind: Kind = "replicated") -> None:
        self.declaration = _declaration_of_whole(name, array.dtype, array.shape, kind)
        self.source = array

    holder = None

    def read(self) -> Array:
        """Return the values."""
        return plain(self.source)

    def assign(self, new: Array) -> None:
        """Put values into the array, unless they were restored there."""
        if new is not self.source:
            self.source[...] = new

    def target(self) -> Array | None:
        """Return the array itself if bytes can be read straight into it."""
        array: Array = self.source
        is_plain = array.dtype == numpy_dtype(dtype_token(array.dtype)) and array.dtype.isnative
        return array if is_plain and array.flags.c_contiguous and array.flags.writeable else None


def array_leaf(value: Array | np.generic, name: str, assign: Assign, kind: Kind = "replicated") -> TensorLeaf:
    """Return the leaf of a NumPy array, restored in place if it can be, or of a scalar, replaced in its container."""
    if isinstance(value, np.generic):
        scalar = np.asarray(value)
        return TensorLeaf(declare(scalar, name, kind), lambda: plain(scalar), lambda new: assign(new[()]))
    if not value.flags.writeable:
        return TensorLeaf(declare(value, name, kind), lambda: plain(value), lambda new: assign(new.copy()))
    return ArrayLeaf(value, name, kind)


def sharded_leaf(value: Sharded, name: str, assign: Assign) -> TensorLeaf:
    """Return the leaf of this rank's part of a tensor."""
    array = value.array if isinstance(value.array, np.ndarray) else np.asarray(value.array)
    extent = Extent(tuple(value.offset), tuple(map(int, array.shape)))
    inner = array_leaf(array, name, lambda new: assign(Sharded(new, value.global_shape, value.offset)))
    declaration = declare(array, name, "sharded", extent, value.global_shape)
    return TensorLeaf(declaration, inner.read, inner.assign, inner.target)


def root_only_leaf(value: RootOnly, name: str) -> TensorLeaf:
    """Return the leaf of an array of which rank 0's counts."""
    array = value.value if isinstance(value.value, np.ndarray) else np.asarray(value.value)
    return array_leaf(array, name, lambda new: setattr(value, "value", new), "root")


JSON_SUFFIX = "json"


def per_rank_leaf(value: PerRank, name: str) -> TensorLeaf:
    """Return the leaf of a per-rank array, or of a JSON value as its UTF-8 bytes under ``NAME/json``."""
    if isinstance(value.value, np.ndarray | np.generic):
        held = np.asarray(value.value)
        declaration = declare(held, name, "per-rank")
        return TensorLeaf(declaration, lambda: plain(held), lambda new: setattr(value, "value", new.copy()))
    if not is_json(value.value):
        raise StateError(f"a per-rank value must be an array or JSON, not {type(value.value).__qualname__}")
    encoded = np.frombuffer(json.dumps(value.value).encode(), np.uint8)

    def assign(new: Array) -> None:
        value.value = json.loads(new.tobytes())

    return TensorLeaf(declare(encoded, join(name, JSON_SUFFIX), "per-rank"), lambda: encoded, assign)


def as_bytes(array: Array) -> npt.NDArray[np.uint8]:
    """Return a flat byte view of a C-contiguous array, without a copy."""
    if array.size == 0:
        return np.empty(0, np.uint8)
    return array.reshape(-1).view(np.uint8)
