"""Arrays, shards, per-rank values and JSON of a state as leaves."""

from __future__ import annotations

import functools
import json
import math
import warnings
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from hpcckpt.core.dtypes import dtype_token, numpy_dtype
from hpcckpt.core.plan import Declaration
from hpcckpt.core.tensors import Extent, Kind, TensorSpec, is_text
from hpcckpt.errors import CorruptError, ShardingError, StateError
from hpcckpt.state.leaves import Array, Assign, TensorLeaf, cast_like, join

# -- what users wrap values in -------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Sharded:
    """This rank's part of a tensor that is spread over ranks.

    Parameters
    ----------
    array : array_like
        The values that this rank holds: a box of the tensor.
    global_shape : sequence of int
        Shape of the whole tensor, in elements.
    offset : sequence of int
        Where the box begins in the whole tensor, one index per axis.

    Raises
    ------
    ShardingError
        If the box does not lie inside the tensor.
    """

    array: Any
    global_shape: Sequence[int]
    offset: Sequence[int]

    def __post_init__(self) -> None:
        object.__setattr__(self, "global_shape", _numbers("global_shape", self.global_shape))
        object.__setattr__(self, "offset", _numbers("offset", self.offset))
        shape = tuple(map(int, np.shape(self.array)))
        if not Extent(tuple(self.offset), shape).fits(tuple(self.global_shape)):
            raise ShardingError(
                f"a shard of shape {shape} at offset {self.offset} does not fit a tensor of shape {self.global_shape}"
            )


def _numbers(name: str, value: Any) -> tuple[int, ...]:
    if isinstance(value, int | np.integer):
        raise StateError(f"Sharded: {name} must be a tuple, such as ({value},), not the number {value}")
    return tuple(map(int, value))


@dataclass(slots=True, eq=False)
class PerRank:
    """A value that each rank saves separately: an array, or a JSON value.

    Examples are the state of a random generator and the position of an iterator. A restore on the same number of ranks
    gives each rank its own value back: an array in place if it still has that shape, otherwise as a new `value`;
    another dtype is refused. On another number of ranks the value is left as it is, and rank 0 logs a warning that
    names it (on stderr, unless logging is configured otherwise). The warning is also in `Restored.warnings` of every
    rank.
    """

    value: Any


@dataclass(slots=True, eq=False)
class PerRankArrays:
    """Arrays that each rank has for itself, by name; a restore fills in whatever names the checkpoint has there."""

    arrays: dict[str, Array] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class RootOnly:
    """An array that may differ between ranks, such as BatchNorm statistics.

    Rank 0's is saved, and restored on all ranks. Every rank needs an array of the same shape and dtype; on ranks other
    than 0 its values are ignored by a save.
    """

    value: Any


@dataclass(slots=True, eq=False)
class Parts:
    """Some parts of a state, by name: whatever else a checkpoint has is not asked for when they are restored.

    Attributes
    ----------
    parts : mapping of str to object
        The parts.
    values : mapping of str to dict
        JSON values and scalars that are asked for: a restore puts there what it finds; see `plain_values.value_leaves`.
    """

    parts: Mapping[str, Any]
    values: Mapping[str, dict[str, Any]] = field(default_factory=dict)


# -- JSON ----------------------------------------------------------------------------------------

MAX_JSON_DEPTH = 100
_MAX_JSON_INT = 1 << 4096  # readers limit the digits they convert


def is_json(value: Any, room: int = MAX_JSON_DEPTH) -> bool:
    """Return True if a value can be stored as JSON: plain scalars, lists, dicts with string keys; not too deep."""
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


def has_nan(value: Any) -> bool:
    """Return True if a NaN is in a JSON value. Pure."""
    if isinstance(value, dict):
        return any(map(has_nan, value.values()))
    if isinstance(value, list | tuple):
        return any(map(has_nan, value))
    return isinstance(value, float) and math.isnan(value)


# -- arrays --------------------------------------------------------------------------------------

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # NumPy 2.5 has chararray still, and warns that it will go
    _CHARARRAY = getattr(np.char, "chararray", np.ndarray)
_ARRAYS = frozenset({np.ndarray, np.memmap, np.matrix, np.recarray, _CHARARRAY})
"""Classes of arrays that hold nothing but their elements."""


def own_array(value: Any) -> Array:
    """Return an array as a plain ``ndarray`` that shares its memory. Independent.

    Raises
    ------
    StateError
        If it is of a class whose instances may hold more than their elements: a mask, units, labels.
    """
    cls = type(value)
    if cls is np.ndarray:
        return value  # type: ignore[no-any-return]
    if cls in _ARRAYS:
        return np.asarray(value)
    if isinstance(value, np.ma.MaskedArray):
        raise StateError(
            "a numpy.ma.MaskedArray cannot be saved, its mask would be lost: save two arrays, "
            "numpy.ma.getdata(x) and numpy.ma.getmaskarray(x), or x.filled(value)"
        )
    name = f"{cls.__module__}.{cls.__qualname__}"
    if isinstance(value, np.ndarray):
        raise StateError(
            f"{name} is a subclass of numpy.ndarray that may hold more than its elements, which would be lost: "
            "save numpy.asarray(x), and what else it holds under other names"
        )
    make = "hpcckpt.torch.as_array(x.detach())" if name.startswith("torch.") else "numpy.asarray(x)"
    raise StateError(f"{name} is not a NumPy array: give {make}, and use what is restored into that array")


def like(value: Array, new: Array) -> Array:
    """Return restored values as an array of the class and byte order of the one that they replace. Independent."""
    found = new.astype(value.dtype, copy=False)
    return found if type(value) in {np.ndarray, np.memmap} else found.view(type(value))


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
        array = own_array(array)
        self.declaration = _declaration_of_whole(name, array.dtype, array.shape, kind)
        self.source = array

    holder = stager = None

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

    def place(self) -> Hashable:
        """Return where the array's elements are."""
        array: Array = self.source
        return (array.ctypes.data, array.dtype.str, array.shape, array.strides) if array.size else None


class ScalarLeaf(TensorLeaf):
    """The leaf of a NumPy scalar, which is replaced as a whole."""

    __slots__ = ()


def array_leaf(value: Array | np.generic, name: str, assign: Assign, kind: Kind = "replicated") -> TensorLeaf:
    """Return the leaf of a NumPy array, restored in place if it can be, or of a scalar, replaced in its container."""
    if isinstance(value, np.generic):
        scalar = _scalar(value)
        return ScalarLeaf(declare(scalar, name, kind), lambda: plain(scalar), lambda new: assign(new[()]))
    array = own_array(value)
    if not array.flags.writeable:
        return TensorLeaf(declare(array, name, kind), lambda: plain(array), lambda new: assign(like(value, new.copy())))
    return ArrayLeaf(array, name, kind)


def _scalar(value: np.generic) -> Array:
    """Return a scalar as an array of no axes.

    Raises
    ------
    StateError
        If it would not be restored as it is: NumPy drops zeros at the end of text.
    """
    scalar: Array = np.asarray(value)
    if isinstance(value, np.str_ | np.bytes_) and scalar[()] != value:
        raise StateError(f"a {type(value).__qualname__} that ends with zeros cannot be saved: they would be lost")
    return scalar


def sharded_leaf(value: Sharded, name: str, assign: Assign) -> TensorLeaf:
    """Return the leaf of this rank's part of a tensor."""
    array = own_array(value.array)
    extent = Extent(tuple(value.offset), tuple(map(int, array.shape)))
    inner = array_leaf(value.array, name, lambda new: assign(Sharded(new, value.global_shape, value.offset)))
    declaration = declare(array, name, "sharded", extent, value.global_shape)
    return TensorLeaf(declaration, inner.read, inner.assign, inner.target, array)


def root_only_leaf(value: RootOnly, name: str) -> TensorLeaf:
    """Return the leaf of an array of which rank 0's counts."""
    if value.value is None:
        raise StateError(
            "RootOnly(None): every rank needs an array of the shape and dtype of rank 0's, whose values are ignored on "
            "the other ranks: pass RootOnly(numpy.zeros(shape, dtype)) there"
        )
    if not isinstance(value.value, np.generic):
        own_array(value.value)  # refuses what is no array
    return array_leaf(value.value, name, lambda new: setattr(value, "value", new), "root")


JSON_SUFFIX = "json"


class PerRankJsonLeaf(TensorLeaf):
    """The leaf of a JSON value that each rank has for itself, as its UTF-8 bytes under ``NAME/json``.

    Attributes
    ----------
    value : PerRank
        What the leaf is of.
    base : str
        Its name without ``/json``, which arrays and NumPy scalars have.
    """

    __slots__ = ("base", "value")

    holder = stager = None

    def __init__(self, value: PerRank, name: str) -> None:
        self.value, self.base = value, name
        self.source = json_bytes(value.value)
        self.declaration = declare(self.source, join(name, JSON_SUFFIX), "per-rank")

    def read(self) -> Array:
        """Return the bytes."""
        return self.source  # type: ignore[no-any-return]

    def assign(self, new: Array) -> None:
        """Replace the value; lists become tuples where the value is a tuple now."""
        self.value.value = cast_like(json_value(new, self.base), self.value.value)

    def target(self) -> None:
        """Offer no memory to restore into."""


class PerRankArrayLeaf(TensorLeaf):
    """The leaf of an array that each rank has for itself, restored in place if it can be.

    Attributes
    ----------
    value : PerRank
        What the leaf is of.
    held : numpy.ndarray
        Its array.
    is_in_place : bool
        Whether the array itself is filled: false if other parts of the state have its memory too.
    """

    __slots__ = ("held", "is_in_place", "value")

    holder = stager = source = None

    def __init__(self, value: PerRank, held: Array, name: str) -> None:
        self.value, self.held, self.is_in_place = value, held, held.flags.writeable
        self.declaration = declare(held, name, "per-rank")

    def read(self) -> Array:
        """Return the values."""
        return plain(self.held)

    def assign(self, new: Array) -> None:
        """Fill the array, or put a new one in its place if that has another shape or dtype."""
        own = self.held
        is_fit = (own.shape, own.dtype.newbyteorder("=")) == (new.shape, new.dtype.newbyteorder("="))
        if self.is_in_place and is_fit:
            own[...] = new
        else:
            self.value.value = like(self.value.value, new.copy())

    def target(self) -> None:
        """Offer no memory to restore into."""

    def memory(self) -> Array:
        """Return the array."""
        return self.held


def json_bytes(value: Any) -> npt.NDArray[np.uint8]:
    """Return a JSON value as it is stored for one rank. Pure."""
    return np.frombuffer(json.dumps(value).encode(), np.uint8)


def json_value(array: Array, name: str) -> Any:
    """Return the JSON value of one rank that is stored under a name. Pure.

    Raises
    ------
    CorruptError
        If the bytes are no JSON that a rank can have saved.
    """
    try:
        value = json.loads(array.tobytes())
    except (ValueError, RecursionError) as error:
        raise CorruptError(f"the value {name!r} of a rank is not JSON: {error}; use an older step") from error
    if not is_json(value):
        raise CorruptError(
            f"the value {name!r} of a rank is nested too deep, or has too large a number; use an older step"
        )
    return value


def per_rank_leaf(value: PerRank, name: str) -> TensorLeaf:
    """Return the leaf of a per-rank array, NumPy scalar or JSON value."""
    own = value.value
    if isinstance(own, np.generic):
        scalar = _scalar(own)
        return ScalarLeaf(
            declare(scalar, name, "per-rank"), lambda: plain(scalar), lambda new: setattr(value, "value", new[()])
        )
    if isinstance(own, np.ndarray):
        held = own_array(own)
        return PerRankArrayLeaf(value, held, name)
    if not is_json(own):
        raise StateError(
            f"a per-rank value must be an array, a NumPy scalar or JSON, not {_not_json(own)}: {conversion(own)}"
        )
    return PerRankJsonLeaf(value, name)


def conversion(value: Any) -> str:
    """Return what to pass in place of a value that is not JSON. Pure."""
    if isinstance(value, dict) and "bit_generator" in value:
        return "use rng = numpy.random.default_rng(seed), whose state is JSON"
    if isinstance(value, np.random.Generator):
        return "pass PerRank(rng.bit_generator.state), and after a restore set rng.bit_generator.state to its value"
    if isinstance(value, np.random.RandomState) or (isinstance(value, tuple) and value[:1] == ("MT19937",)):
        return "use rng = numpy.random.default_rng(seed), and pass PerRank(rng.bit_generator.state)"
    if type(value).__module__.partition(".")[0] == "torch":
        return "give hpcckpt.torch.as_array(x.detach()), which shares its memory"
    return "convert it, for example with int(x), float(x) or x.tolist()"


def _not_json(value: Any) -> str:
    """Return the class of what in a value is not JSON. Pure."""
    items = value if isinstance(value, list | tuple) else value.values() if isinstance(value, dict) else ()
    name = type(value).__qualname__
    return next((f"{name} of {_not_json(item)}" for item in items if not is_json(item)), name)


def as_bytes(array: Array) -> npt.NDArray[np.uint8]:
    """Return a flat byte view of a C-contiguous array, without a copy."""
    if array.size == 0:
        return np.empty(0, np.uint8)
    return array.reshape(-1).view(np.uint8)
