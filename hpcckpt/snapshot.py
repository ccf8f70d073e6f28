"""State to named leaves, and leaves back to state.

A *leaf* is one tensor or one small object of the state, with the way to read it and the way to put a
restored value back.  Mappings and sequences are walked here; frameworks have adapters in their own
rooms, found by the module that defines an object's class, so that nothing is imported that the
program itself has not imported.
"""

from __future__ import annotations

import functools
import importlib
import json
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt

from hpcckpt.dtypes import dtype_token, numpy_dtype
from hpcckpt.errors import Problem, ShardingError, StateError, list_problems
from hpcckpt.plan import Declaration
from hpcckpt.tensors import Extent, Kind, TensorSpec, is_text, name_problem

Array = npt.NDArray[Any]

ADAPTERS = {
    "keras": "hpcckpt.keras.state",
    "tensorflow": "hpcckpt.keras.state",
    "horovod": "hpcckpt.keras.state",
}
"""Top-level module that defines a class -> module of ours with ``leaves(obj, name)``; see `Adapter`."""


class Adapter(Protocol):
    """What a module named in `ADAPTERS` provides."""

    def leaves(self, obj: Any, name: str) -> Iterator[Leaf] | None:
        """Yield the leaves of `obj`, names starting with `name`; ``None`` if it is not the adapter's."""


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


# -- leaves --------------------------------------------------------------------------------------


def _no_target() -> None:
    return None


Holder = Callable[[Sequence[Any]], list[Array]]
"""Given the sources of several leaves, returns their values as C-contiguous, little-endian arrays that later updates
of the program leave as they are; each keeps alive what it needs."""


@dataclass(frozen=True, slots=True, eq=False)
class TensorLeaf:
    """One tensor of the state.

    Attributes
    ----------
    declaration : Declaration
        Name, dtype, global shape, kind, and this rank's extent.
    read : callable
        Returns the values as a NumPy array of the extent's shape; without a copy where that is possible.
    assign : callable
        Puts restored values, an array of the extent's shape, into the state.
    target : callable
        Returns memory to restore into directly (a writable, C-contiguous array that nobody shares), or ``None``.
    source : object
        What `holder` holds.
    holder : callable, optional
        Holds the values of many leaves at once, without a copy where that is possible; a leaf without one is copied.
    """

    declaration: Declaration
    read: Callable[[], Array]
    assign: Callable[[Array], None]
    target: Callable[[], Array | None] = field(default=_no_target)
    source: Any = None
    holder: Holder | None = None


@dataclass(frozen=True, slots=True, eq=False)
class ObjectLeaf:
    """One small JSON value of the state, the same on all ranks."""

    name: str
    read: Callable[[], Any]
    assign: Callable[[Any], None]


@dataclass(frozen=True, slots=True, eq=False)
class Finish:
    """Something to do once after all leaves of a restore are assigned (``load_state_dict``)."""

    run: Callable[[], None]


Leaf = TensorLeaf | ObjectLeaf | Finish


@dataclass(frozen=True, slots=True, eq=False)
class StateTree:
    """The leaves of a state, sorted by name."""

    tensors: Mapping[str, TensorLeaf]
    objects: Mapping[str, ObjectLeaf]
    finishes: tuple[Finish, ...] = ()

    @property
    def declarations(self) -> tuple[Declaration, ...]:
        """What this rank declares, in the order of the names."""
        return tuple(leaf.declaration for leaf in self.tensors.values())


def flatten(state: Any) -> StateTree:
    """Return the leaves of `state`. Independent.

    Raises
    ------
    StateError
        Naming every value that cannot be saved and every bad or repeated name.
    """
    tensors: dict[str, TensorLeaf] = {}
    objects: dict[str, ObjectLeaf] = {}
    finishes: list[Finish] = []
    problems: list[Problem] = []
    for leaf in _leaves(state, "", _refuse_assignment, problems):
        if isinstance(leaf, Finish):
            finishes.append(leaf)
            continue
        name = leaf.declaration.spec.name if isinstance(leaf, TensorLeaf) else leaf.name
        complaint = name_problem(name) or ("appears twice" if name in tensors or name in objects else None)
        if complaint:
            problems.append(Problem(repr(name), complaint))
        elif isinstance(leaf, TensorLeaf):
            tensors[name] = leaf
        else:
            objects[name] = leaf
    if problems:
        raise StateError(f"this state cannot be saved: {list_problems(problems)}")
    return StateTree(dict(sorted(tensors.items())), dict(sorted(objects.items())), tuple(finishes))


Assign = Callable[[Any], None]


def _refuse_assignment(_value: Any) -> None:
    raise StateError("a bare value cannot be restored in place: put it into a dict, or use a NumPy array")


def _leaves(value: Any, name: str, assign: Assign, problems: list[Problem]) -> Iterator[Leaf]:
    """Walk one value; what cannot be saved is added to `problems`."""
    try:
        yield from _dispatch(value, name, assign, problems)
    except (StateError, ShardingError) as error:
        problems.append(Problem(name or "state", str(error)))
    except RecursionError:
        problems.append(Problem(f"{name[:40]}…", "is nested too deep, or holds itself"))


def _dispatch(value: Any, name: str, assign: Assign, problems: list[Problem]) -> Iterator[Leaf]:
    adapted = _adapted(value, name)
    if adapted is not None:
        yield from adapted
    elif isinstance(value, Mapping):
        yield from _mapping_leaves(value, name, assign, problems)
    elif isinstance(value, list | tuple) and not is_json(value):
        yield from _sequence_leaves(value, name, problems)
    elif isinstance(value, Sharded):
        yield _sharded_leaf(value, name, assign)
    elif isinstance(value, PerRank):
        yield _per_rank_leaf(value, name)
    elif isinstance(value, RootOnly):
        yield _root_only_leaf(value, name)
    elif isinstance(value, np.ndarray | np.generic):
        yield array_leaf(value, name, assign)
    elif is_json(value):
        yield ObjectLeaf(name, lambda: value, assign)
    elif hasattr(value, "state_dict") and hasattr(value, "load_state_dict"):
        yield from _stateful_leaves(value, name, problems)
    else:
        raise StateError(
            f"{type(value).__module__}.{type(value).__qualname__} cannot be saved: use arrays, JSON values, "
            "or an object with state_dict() and load_state_dict()"
        )


def _adapted(value: Any, name: str) -> Iterator[Leaf] | None:
    cls = type(value)
    if cls not in _adapters:
        _adapters[cls] = _adapter_of(cls)
    adapter = _adapters[cls]
    return None if adapter is None else adapter.leaves(value, name)


_adapters: dict[type[Any], Adapter | None] = {}


def _adapter_of(cls: type[Any]) -> Adapter | None:
    for base in cls.__mro__:
        module = ADAPTERS.get(base.__module__.partition(".")[0])
        if module is not None:
            return cast(Adapter, importlib.import_module(module))
    return None


def join(name: str, part: str) -> str:
    """Join two parts of a tensor name with '/'."""
    return f"{name}/{part}" if name else part


def _mapping_leaves(value: Mapping[Any, Any], name: str, assign: Assign, problems: list[Problem]) -> Iterator[Leaf]:
    if not value and name:
        yield ObjectLeaf(name, dict, assign)
    for key, item in value.items():
        if not isinstance(key, str):
            problems.append(Problem(name or "state", f"key {key!r} is not a string"))
            continue
        yield from _leaves(item, join(name, key), _item_setter(value, key), problems)


def _item_setter(mapping: Mapping[str, Any], key: str) -> Assign:
    if not isinstance(mapping, MutableMapping):
        return _refuse_assignment

    def assign(new: Any) -> None:
        mapping[key] = new

    return assign


def _sequence_leaves(value: Sequence[Any], name: str, problems: list[Problem]) -> Iterator[Leaf]:
    for number, item in enumerate(value):

        def assign(new: Any, number: int = number) -> None:
            if not isinstance(value, list):
                _refuse_assignment(new)
            cast(list[Any], value)[number] = new

        yield from _leaves(item, join(name, str(number)), assign, problems)


def _stateful_leaves(value: Any, name: str, problems: list[Problem]) -> Iterator[Leaf]:
    """Walk a copy of the object's state_dict, which is handed back to the object once it is filled."""
    held: dict[str, Any] = dict(value.state_dict())
    yield from _mapping_leaves(held, name, _refuse_assignment, problems)
    yield Finish(lambda: value.load_state_dict(held))


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


def _in_place_target(array: Array) -> Array | None:
    is_plain = array.dtype == numpy_dtype(dtype_token(array.dtype)) and array.dtype.isnative
    return array if is_plain and array.flags.c_contiguous and array.flags.writeable else None


def array_leaf(value: Array | np.generic, name: str, assign: Assign, kind: Kind = "replicated") -> TensorLeaf:
    """Return the leaf of a NumPy array, restored in place, or of a scalar, replaced in its container."""
    if isinstance(value, np.generic):
        scalar = np.asarray(value)
        return TensorLeaf(declare(scalar, name, kind), lambda: plain(scalar), lambda new: assign(new[()]))
    if not value.flags.writeable:
        return TensorLeaf(declare(value, name, kind), lambda: plain(value), lambda new: assign(new.copy()))
    return TensorLeaf(declare(value, name, kind), lambda: plain(value), _filler(value), lambda: _in_place_target(value))


def _filler(array: Array) -> Callable[[Array], None]:
    def fill(new: Array) -> None:
        if new is not array:
            array[...] = new

    return fill


def _sharded_leaf(value: Sharded, name: str, assign: Assign) -> TensorLeaf:
    array = value.array if isinstance(value.array, np.ndarray) else np.asarray(value.array)
    extent = Extent(tuple(value.offset), tuple(map(int, array.shape)))
    inner = array_leaf(array, name, lambda new: assign(Sharded(new, value.global_shape, value.offset)))
    declaration = declare(array, name, "sharded", extent, value.global_shape)
    return TensorLeaf(declaration, inner.read, inner.assign, inner.target)


def _root_only_leaf(value: RootOnly, name: str) -> TensorLeaf:
    array = value.value if isinstance(value.value, np.ndarray) else np.asarray(value.value)
    return array_leaf(array, name, lambda new: setattr(value, "value", new), "root")


JSON_SUFFIX = "json"


def _per_rank_leaf(value: PerRank, name: str) -> TensorLeaf:
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
