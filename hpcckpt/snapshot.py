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
from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
import numpy.typing as npt

from hpcckpt.dtypes import dtype_token, numpy_dtype
from hpcckpt.errors import Problem, ShardingError, StateError, list_problems
from hpcckpt.plan import Declaration
from hpcckpt.tensors import Extent, Kind, TensorSpec, is_text, name_problem

Array = npt.NDArray[Any]

ADAPTERS = {
    "keras": "hpcckpt.keras.state",
    "tensorflow": "hpcckpt.tensorflow.state",
    "horovod": "hpcckpt.keras.state",
    "torch": "hpcckpt.torch.state",
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


@dataclass(slots=True, eq=False)
class Parts:
    """Some parts of a state, by name: whatever else a checkpoint has is not asked for when they are restored."""

    parts: Mapping[str, Any]


# -- leaves --------------------------------------------------------------------------------------


def _no_target() -> None:
    return None


Holder = Callable[[Sequence[Any]], list[Array]]
"""Given the sources of several leaves, returns their values as C-contiguous, little-endian arrays that later updates
of the program leave as they are; each keeps alive what it needs."""


@dataclass(slots=True, eq=False)  # not frozen: a state has many leaves, and freezing trebles what making one costs
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


@dataclass(slots=True, eq=False)
class ObjectLeaf:
    """One small JSON value of the state, the same on all ranks, and where it stands: ``container[key]``."""

    name: str
    value: Any
    container: Any
    key: Any

    def read(self) -> Any:
        """Return the value."""
        return self.value

    def assign(self, new: Any) -> None:
        """Replace it in its container."""
        _put(self.container, self.key, new)


@dataclass(frozen=True, slots=True, eq=False)
class Finish:
    """Something to do once after all leaves of a restore are assigned (``load_state_dict``)."""

    run: Callable[[], None]


class Fitted(NamedTuple):
    """An open part of a state as a checkpoint has it.

    Attributes
    ----------
    leaves : sequence of TensorLeaf or ObjectLeaf
        New ones, in place of those with their names.
    dropped : collection of str
        Names of leaves that the checkpoint has not.
    finish : Finish or None
        What is to be done with the values.
    unasked : collection of str
        Names in the checkpoint that are nobody's business.
    """

    leaves: Sequence[TensorLeaf | ObjectLeaf] = ()
    dropped: Collection[str] = ()
    finish: Finish | None = None
    unasked: Collection[str] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Open:
    """A part of the state that a restore gives the shape that the checkpoint has: what grows only with use.

    Attributes
    ----------
    fit : callable
        Given the tensors and the JSON values of a checkpoint by name, says what becomes of the part's leaves.
    """

    fit: Callable[[Mapping[str, TensorSpec], Mapping[str, Any]], Fitted]


Leaf = TensorLeaf | ObjectLeaf | Finish | Open
Assign = Callable[[Any], None]


def _put(container: Any, key: Any, new: Any) -> None:
    if not isinstance(container, list | MutableMapping):
        raise StateError("a bare value cannot be restored in place: put it into a dict, or use a NumPy array")
    container[key] = new


@dataclass(frozen=True, slots=True, eq=False)
class StateTree:
    """The leaves of a state, sorted by name."""

    tensors: Mapping[str, TensorLeaf]
    objects: Mapping[str, ObjectLeaf]
    finishes: tuple[Finish | Open, ...] = ()
    unasked: frozenset[str] = frozenset()

    def fitted(self, specs: Mapping[str, TensorSpec], objects: Mapping[str, Any]) -> StateTree:
        """Return the tree with its open parts as a checkpoint has them. Independent."""
        leaves: dict[str, TensorLeaf | ObjectLeaf] = {**self.tensors, **self.objects}
        finishes: list[Finish | Open] = []
        unasked: set[str] = set()
        for part in self.finishes:
            if isinstance(part, Finish):
                finishes.append(part)
                continue
            fitted = part.fit(specs, objects)
            for name in fitted.dropped:
                leaves.pop(name, None)
            leaves |= {leaf_name(leaf): leaf for leaf in fitted.leaves}
            finishes += [fitted.finish] if fitted.finish else []
            unasked.update(fitted.unasked)
        tensors = {name: leaf for name in sorted(leaves) if isinstance(leaf := leaves[name], TensorLeaf)}
        values = {name: leaf for name in sorted(leaves) if isinstance(leaf := leaves[name], ObjectLeaf)}
        return StateTree(tensors, values, tuple(finishes), frozenset(unasked))

    @property
    def declarations(self) -> tuple[Declaration, ...]:
        """What this rank declares, in the order of the names."""
        return tuple(leaf.declaration for leaf in self.tensors.values())


# -- the walk ------------------------------------------------------------------------------------


def flatten(state: Any) -> StateTree:
    """Return the leaves of `state`. Independent.

    Raises
    ------
    StateError
        Naming every value that cannot be saved and every bad or repeated name.
    """
    walk = Walk()
    try:
        walk.visit(state, "", None, None)
    except _TooDeepError as error:
        walk.problems.append(Problem(f"{str(error)[:40]}…", "is nested too deep, or holds itself"))
    if walk.problems:
        raise StateError(f"this state cannot be saved: {list_problems(walk.problems)}")
    tensors = {name: walk.tensors[name] for name in sorted(walk.tensors)}
    objects = {name: walk.objects[name] for name in sorted(walk.objects)}
    return StateTree(tensors, objects, tuple(walk.finishes))


class _TooDeepError(Exception):
    """Ends a walk: to go on beside a value that holds itself twice would take for ever."""


@dataclass(slots=True, eq=False)
class Walk:
    """What one walk over a state has found, and what of it cannot be saved."""

    tensors: dict[str, TensorLeaf] = field(default_factory=dict)
    objects: dict[str, ObjectLeaf] = field(default_factory=dict)
    finishes: list[Finish | Open] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    def visit(self, value: Any, name: str, container: Any, key: Any) -> None:
        """Take in the leaves of one value, which stands in ``container[key]``."""
        try:
            visit = _visitors.get(value.__class__) or _visitor_of(value.__class__)
            visit(self, value, name, container, key)
        except (StateError, ShardingError) as error:
            self.problems.append(Problem(name or "state", str(error)))
        except RecursionError:
            raise _TooDeepError(name) from None

    def add(self, leaf: Leaf) -> None:
        """Take in a leaf, or say why not."""
        if isinstance(leaf, TensorLeaf):
            self.add_tensor(leaf)
        elif isinstance(leaf, ObjectLeaf):
            if self._may_be_called(leaf.name):
                self.objects[leaf.name] = leaf
        else:
            self.finishes.append(leaf)

    def add_tensor(self, leaf: TensorLeaf) -> None:
        """Take in the leaf of a tensor, or say why not."""
        name = leaf.declaration.spec.name
        if self._may_be_called(name):
            self.tensors[name] = leaf

    def _may_be_called(self, name: str) -> bool:
        complaint = name_problem(name)
        if complaint is None and (name in self.tensors or name in self.objects):
            complaint = "appears twice"
        if complaint is not None:
            self.problems.append(Problem(repr(name), complaint))
        return complaint is None


Visitor = Callable[[Walk, Any, str, Any, Any], None]
_visitors: dict[type[Any], Visitor] = {}
"""What to do with values of a class: found out once for each."""


def _visitor_of(cls: type[Any]) -> Visitor:
    own = next(visit for kinds, visit in _VISITORS if issubclass(cls, kinds))
    adapter = _adapter_of(cls)
    _visitors[cls] = own if adapter is None else functools.partial(_visit_adapted, adapter, own)
    return _visitors[cls]


def _adapter_of(cls: type[Any]) -> Adapter | None:
    for base in cls.__mro__:
        module = ADAPTERS.get(base.__module__.partition(".")[0])
        if module is not None:
            return cast(Adapter, importlib.import_module(module))
    return None


def _visit_adapted(
    adapter: Adapter, else_visit: Visitor, walk: Walk, value: Any, name: str, container: Any, key: Any
) -> None:
    leaves = adapter.leaves(value, name)
    if leaves is None:
        else_visit(walk, value, name, container, key)
        return
    for leaf in leaves:
        walk.add(leaf)


def leaf_name(leaf: TensorLeaf | ObjectLeaf) -> str:
    """Return the name of a leaf."""
    return leaf.declaration.spec.name if isinstance(leaf, TensorLeaf) else leaf.name


def join(name: str, part: str) -> str:
    """Join two parts of a tensor name with '/'."""
    return f"{name}/{part}" if name else part


def _visit_mapping(walk: Walk, value: Mapping[Any, Any], name: str, container: Any, key: Any) -> None:
    if not value and name:
        walk.add(ObjectLeaf(name, {}, container, key))
    for own_key, item in value.items():
        if isinstance(own_key, str):
            walk.visit(item, f"{name}/{own_key}" if name else own_key, value, own_key)
        else:
            walk.problems.append(Problem(name or "state", f"key {own_key!r} is not a string"))


def _visit_sequence(walk: Walk, value: Sequence[Any], name: str, container: Any, key: Any) -> None:
    if is_json(value):
        walk.add(ObjectLeaf(name, value, container, key))
        return
    for number, item in enumerate(value):
        walk.visit(item, join(name, str(number)), value, number)


def _visit_array(walk: Walk, value: Array, name: str, container: Any, key: Any) -> None:
    if value.flags.writeable:
        walk.add_tensor(ArrayLeaf(value, name))
    else:
        walk.add_tensor(array_leaf(value, name, functools.partial(_put, container, key)))


def _visit_wrapped(walk: Walk, value: Any, name: str, container: Any, key: Any) -> None:
    if isinstance(value, Sharded):
        walk.add_tensor(_sharded_leaf(value, name, functools.partial(_put, container, key)))
    else:
        walk.add_tensor(_per_rank_leaf(value, name) if isinstance(value, PerRank) else _root_only_leaf(value, name))


def _visit_parts(walk: Walk, value: Parts, name: str, container: Any, key: Any) -> None:
    _visit_mapping(walk, value.parts, name, container, key)
    asked = tuple(join(name, part) for part in value.parts)

    def fit(specs: Mapping[str, TensorSpec], objects: Mapping[str, Any]) -> Fitted:
        return Fitted(unasked=[n for n in (*specs, *objects) if n not in asked and not _is_below(n, asked)])

    walk.add(Open(fit))


def _is_below(name: str, parents: Sequence[str]) -> bool:
    return any(name.startswith(f"{parent}/") for parent in parents)


def _visit_scalar(walk: Walk, value: np.generic, name: str, container: Any, key: Any) -> None:
    walk.add_tensor(array_leaf(value, name, functools.partial(_put, container, key)))


def _visit_json(walk: Walk, value: Any, name: str, container: Any, key: Any) -> None:
    if is_json(value):
        walk.add(ObjectLeaf(name, value, container, key))
    else:
        _visit_other(walk, value, name, container, key)


def _visit_other(walk: Walk, value: Any, name: str, _container: Any, _key: Any) -> None:
    """Walk the object's state_dict; one like it is handed back to the object once it is filled."""
    if not (hasattr(value, "state_dict") and hasattr(value, "load_state_dict")):
        raise StateError(
            f"{type(value).__module__}.{type(value).__qualname__} cannot be saved: use arrays, JSON values, "
            "or an object with state_dict() and load_state_dict()"
        )
    from hpcckpt.statedicts import visit_state_dict

    visit_state_dict(walk, value.state_dict(), name, value.load_state_dict)


_VISITORS: tuple[tuple[Any, Visitor], ...] = (
    (Mapping, _visit_mapping),
    ((list, tuple), _visit_sequence),
    ((Sharded, PerRank, RootOnly), _visit_wrapped),
    (Parts, _visit_parts),
    (np.ndarray, _visit_array),
    (np.generic, _visit_scalar),
    ((str, int, float, type(None)), _visit_json),
    (object, _visit_other),
)


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
