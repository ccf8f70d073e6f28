"""Leaves of a state: one tensor or one small object, and how to read it and to assign a restored value."""

from __future__ import annotations

import enum
from bisect import bisect_left
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Collection, Container, Hashable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from hpcckpt.core.plan import Declaration
from hpcckpt.core.tensors import TensorSpec
from hpcckpt.errors import Problem, StateError
from hpcckpt.native.arena import Arena

Array = npt.NDArray[Any]
T = TypeVar("T")
_AFTER_SLASH = chr(ord("/") + 1)


Holder = Callable[[Sequence[Any]], list[Array]]
"""Given the sources of several leaves, returns their values as C-contiguous, little-endian arrays that later updates
of the program leave as they are; each keeps alive what it needs."""


class StagedPart(NamedTuple):
    """Elements `start` to `stop` of a tensor, in row-major order, and where their bytes go: flat and contiguous."""

    source: Any
    start: int
    stop: int
    into: Array


Stager = Callable[[Sequence[StagedPart], Arena | None], None]
"""Copies parts of several leaves' sources to the host's memory: all of it in the given arena, or anywhere. When it
returns, later updates of the program do not change the copies."""


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
        Returns memory to restore into directly (a writable, C-contiguous array that is not shared), or ``None``.
    source : object
        What `holder` holds, or `stager` copies, or the NumPy array itself.
    holder : callable, optional
        Holds the values of many leaves at once, without a copy where that is possible; a leaf without one is copied.
    stager : callable, optional
        Copies parts of many leaves at once, from memory that is not the host's.
    """

    declaration: Declaration
    read: Callable[[], Array]
    assign: Callable[[Array], None]
    target: Callable[[], Array | None] = field(default=lambda: None)
    source: Any = None
    holder: Holder | None = None
    stager: Stager | None = None

    def place(self) -> Hashable:
        """Return a key of the memory that `assign` fills, equal for leaves of the same elements, or ``None``."""
        return None

    @property
    def is_compared(self) -> bool:
        """Whether the values must be equal on all ranks."""
        return self.declaration.spec.kind == "replicated"

    def compared(self) -> Array:
        """Return what ranks compare if the values must be equal: themselves, or a digest of them."""
        return self.read()

    def memory(self) -> Array | None:
        """Return what `assign` fills as an array; ``None`` if it has no memory of the host that others could have."""
        return self.source if isinstance(self.source, np.ndarray) else None


@dataclass(slots=True, eq=False)
class ObjectLeaf:
    """One small JSON value of the state, the same on all ranks, and where it is: ``container[key]``."""

    name: str
    value: Any
    container: Any
    key: Any

    def read(self) -> Any:
        """Return the value."""
        return self.value

    def assign(self, new: Any) -> None:
        """Replace it in its container; lists become tuples where the state has tuples."""
        put(self.container, self.key, cast_like(new, self.value))


@dataclass(frozen=True, slots=True, eq=False)
class Finish:
    """Something to do once after all leaves of a restore are assigned (``load_state_dict``)."""

    run: Callable[[], None]


class Resolved(NamedTuple):
    """A dynamic part of a state as a checkpoint has it.

    Attributes
    ----------
    leaves : sequence of TensorLeaf or ObjectLeaf
        New ones, in place of those with their names.
    dropped : collection of str
        Names of leaves that the checkpoint has not.
    finish : Finish or None
        What is to be done with the values.
    ignored : collection of str
        Names in the checkpoint that no leaf needs to match.
    fresh : mapping of str to callable
        Tensors that need not keep their memory: each returns a leaf with new memory.
    problems : sequence of Problem
        Why the part does not fit the checkpoint, if it does not: all its leaves are dropped.
    """

    leaves: Sequence[TensorLeaf | ObjectLeaf] = ()
    dropped: Collection[str] = ()
    finish: Finish | None = None
    ignored: Collection[str] = ()
    fresh: Mapping[str, Callable[[], TensorLeaf | None]] = {}
    problems: Sequence[Problem] = ()


@dataclass(frozen=True, slots=True, eq=False)
class DynamicPart:
    """A part of the state that a restore gives the shape that the checkpoint has: what grows only with use.

    Attributes
    ----------
    resolve : callable
        Returns what becomes of the part's leaves, given the tensors and the JSON values of a checkpoint by name.
    name : str
        It is given what is called so in the checkpoint, and all below it. If empty: all.
    """

    resolve: Callable[[Mapping[str, TensorSpec], Mapping[str, Any]], Resolved]
    name: str = ""


Leaf = TensorLeaf | ObjectLeaf | Finish | DynamicPart
Assign = Callable[[Any], None]


def put(container: Any, key: Any, new: Any) -> None:
    """Let ``container[key]`` be a new value, if it can. Independent."""
    if not isinstance(container, list | MutableMapping):
        raise StateError("a bare value cannot be restored in place: put it into a dict, or use a NumPy array")
    container[key] = new


class _ByName(Generic[T]):
    """What a checkpoint has, by name: a part of a state finds its own names without reading all."""

    def __init__(self, items: Mapping[str, T]) -> None:
        self._items = items
        self._sorted = sorted(items)

    def of(self, name: str) -> Mapping[str, T]:
        """Return what is called `name`, and all below it."""
        if not name:
            return self._items
        own = [name] if name in self._items else []
        return {each: self._items[each] for each in (*own, *names_below(name, self._sorted))}


@dataclass(frozen=True, slots=True, eq=False)
class StateTree:
    """The leaves of a state, sorted by name.

    Attributes
    ----------
    tensors, objects : dict
        The leaves by name.
    finishes : tuple
        What is to be done after a restore, and the dynamic parts.
    ignored : frozenset of str
        Names in the checkpoint that are not compared with the state.
    lists : dict of str to ObjectLeaf
        Lists whose items are leaves, and which can be replaced as a whole: all items are JSON or NumPy scalars.
    fresh : dict of str to callable
        Tensors that need not keep their memory; see `Resolved`.
    problems : tuple of Problem
        Dynamic parts that do not fit the checkpoint.
    repeated : tuple of tuple of str
        The names of each container or other object that restored values are put into, if it has several.
    """

    tensors: Mapping[str, TensorLeaf]
    objects: Mapping[str, ObjectLeaf]
    finishes: tuple[Finish | DynamicPart, ...] = ()
    ignored: frozenset[str] = frozenset()
    lists: Mapping[str, ObjectLeaf] = field(default_factory=dict)
    fresh: Mapping[str, Callable[[], TensorLeaf | None]] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()
    repeated: tuple[tuple[str, ...], ...] = ()

    def resolved(self, specs: Mapping[str, TensorSpec], objects: Mapping[str, Any]) -> StateTree:
        """Return the tree with its dynamic parts as a checkpoint has them. Independent."""
        leaves: dict[str, TensorLeaf | ObjectLeaf] = {**self.tensors, **self.objects}
        specs_by_name, objects_by_name = _ByName(specs), _ByName(objects)
        finishes: list[Finish | DynamicPart] = []
        ignored: set[str] = set()
        fresh: dict[str, Callable[[], TensorLeaf | None]] = {}
        problems: list[Problem] = []
        for part in self.finishes:
            if isinstance(part, Finish):
                finishes.append(part)
                continue
            resolved = part.resolve(specs_by_name.of(part.name), objects_by_name.of(part.name))
            for name in resolved.dropped:
                leaves.pop(name, None)
            leaves |= {leaf_name(leaf): leaf for leaf in resolved.leaves}
            finishes += [resolved.finish] if resolved.finish else []
            ignored.update(resolved.ignored)
            fresh |= resolved.fresh
            problems += resolved.problems
        return replace(
            self.with_leaves(leaves),
            finishes=tuple(finishes),
            ignored=frozenset(ignored),
            fresh=fresh,
            problems=tuple(problems),
        )

    def with_leaves(self, leaves: Mapping[str, TensorLeaf | ObjectLeaf]) -> StateTree:
        """Return the tree with other leaves, of both kinds. Pure."""
        tensors = {name: leaf for name in sorted(leaves) if isinstance(leaf := leaves[name], TensorLeaf)}
        values = {name: leaf for name in sorted(leaves) if isinstance(leaf := leaves[name], ObjectLeaf)}
        return replace(self, tensors=tensors, objects=values)

    @property
    def declarations(self) -> tuple[Declaration, ...]:
        """What this rank declares, in the order of the names."""
        return tuple(leaf.declaration for leaf in self.tensors.values())


def leaf_name(leaf: TensorLeaf | ObjectLeaf) -> str:
    """Return the name of a leaf."""
    return leaf.declaration.spec.name if isinstance(leaf, TensorLeaf) else leaf.name


def join(name: str, part: str) -> str:
    """Join two parts of a tensor name with '/'."""
    return f"{name}/{part}" if name else part


def is_below(name: str, parents: Container[str]) -> bool:
    """Return True if a tensor name is below one of `parents`. Pure."""
    return any(name[:end] in parents for end, character in enumerate(name) if character == "/")


def names_below(name: str, ordered: Sequence[str]) -> Sequence[str]:
    """Return those of sorted tensor names that are below a name. Pure."""
    return ordered[bisect_left(ordered, f"{name}/") : bisect_left(ordered, f"{name}{_AFTER_SLASH}")]


# -- containers in the types that a state has -----------------------------------------------------


def item_of(container: Any, key: Any) -> Any:
    """Return ``container[key]``, or None if there is no such item. Pure."""
    if isinstance(container, Mapping):
        return container.get(key)
    is_there = isinstance(container, list | tuple) and isinstance(key, int) and 0 <= key < len(container)
    return container[key] if is_there else None


def cast_like(value: Any, like: Any) -> Any:
    """Return JSON with tuples, kinds of dicts, and members of enumerations, where `like` has them. Pure."""
    if isinstance(value, list | tuple):
        items = [cast_like(item, item_of(like, number)) for number, item in enumerate(value)]
        return tuple_like(items, like) if isinstance(value, tuple) or isinstance(like, tuple) else items
    if isinstance(value, dict):
        return dict_like({key: cast_like(item, item_of(like, key)) for key, item in value.items()}, like)
    return _member_like(value, like) if isinstance(like, enum.Enum) else value


def _member_like(value: Any, like: enum.Enum) -> Any:
    """Return the member of an enumeration that has a value; the value itself if none has. Pure."""
    return next((each for each in type(like) if type(each.value) is type(value) and each.value == value), value)


def tuple_like(items: list[Any], like: Any) -> tuple[Any, ...]:
    """Return a tuple, as a named one if `like` is one with as many fields. Pure."""
    is_named = isinstance(like, tuple) and hasattr(like, "_fields") and len(like) == len(items)
    return type(like)(*items) if is_named else tuple(items)


def dict_like(value: dict[Any, Any], like: Any) -> dict[Any, Any]:
    """Return a dict as one of the kind that `like` is. Pure."""
    if isinstance(like, defaultdict):
        return defaultdict(like.default_factory, value)
    return type(like)(value) if isinstance(like, Counter | OrderedDict) else value
