"""State to named leaves, and leaves back to state.

A *leaf* is one tensor or one small object of the state (:mod:`hpcckpt.leaves`).  Mappings and sequences are walked
here; arrays and JSON become leaves in :mod:`hpcckpt.values`; frameworks have adapters in their own rooms, found by the
module that defines an object's class, so that nothing is imported that the program itself has not imported.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

import numpy as np

from hpcckpt.dtypes import numpy_dtype
from hpcckpt.errors import Problem, ShardingError, StateError, list_problems
from hpcckpt.leaves import (
    Array,
    Assign,
    Finish,
    Fitted,
    Holder,
    Leaf,
    ObjectLeaf,
    Open,
    StateTree,
    TensorLeaf,
    join,
    leaf_name,
    put,
)
from hpcckpt.tensors import TensorSpec, name_problem
from hpcckpt.values import (
    ArrayLeaf,
    Parts,
    PerRank,
    PerRankArrays,
    RootOnly,
    Sharded,
    array_leaf,
    as_bytes,
    declare,
    is_json,
    per_rank_leaf,
    plain,
    root_only_leaf,
    sharded_leaf,
)

__all__ = [
    "ADAPTERS",
    "Adapter",
    "Array",
    "ArrayLeaf",
    "Assign",
    "Finish",
    "Fitted",
    "Holder",
    "Leaf",
    "ObjectLeaf",
    "Open",
    "Parts",
    "PerRank",
    "PerRankArrays",
    "RootOnly",
    "Sharded",
    "StateTree",
    "TensorLeaf",
    "Visitor",
    "Walk",
    "array_leaf",
    "as_bytes",
    "declare",
    "flatten",
    "is_json",
    "join",
    "leaf_name",
    "plain",
]

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
    walk.problems += _clashes(walk.tensors)
    if walk.problems:
        raise StateError(f"this state cannot be saved: {list_problems(walk.problems)}")
    tensors = {name: walk.tensors[name] for name in sorted(walk.tensors)}
    objects = {name: walk.objects[name] for name in sorted(walk.objects)}
    return StateTree(tensors, objects, tuple(walk.finishes), lists=walk.lists)


def _clashes(tensors: Mapping[str, TensorLeaf]) -> Iterator[Problem]:
    """Yield names that are also what readers call one rank's part of another tensor: ``NAME#RANK``. Pure."""
    for name in tensors:
        base, mark, rank = name.rpartition("#")
        if mark and rank.isdecimal() and base in tensors and tensors[base].declaration.spec.kind == "per-rank":
            yield Problem(repr(name), f"is also what rank {rank}'s part of {base!r} is called: rename one of them")


class _TooDeepError(Exception):
    """Ends a walk: to go on beside a value that holds itself twice would take for ever."""


@dataclass(slots=True, eq=False)
class Walk:
    """What one walk over a state has found, and what of it cannot be saved."""

    tensors: dict[str, TensorLeaf] = field(default_factory=dict)
    objects: dict[str, ObjectLeaf] = field(default_factory=dict)
    finishes: list[Finish | Open] = field(default_factory=list)
    lists: dict[str, ObjectLeaf] = field(default_factory=dict)
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


def _visit_mapping(walk: Walk, value: Mapping[Any, Any], name: str, container: Any, key: Any) -> None:
    if not value and name:
        walk.add(_EmptyLeaf(name, value, container, key))
    for own_key, item in value.items():
        if isinstance(own_key, str):
            walk.visit(item, f"{name}/{own_key}" if name else own_key, value, own_key)
        else:
            walk.problems.append(Problem(name or "state", f"key {own_key!r} is not a string"))


def _assign_to(container: Any, key: Any) -> Assign:
    """Return what puts a restored value into its container.

    Raises
    ------
    StateError
        If the container takes no new values: what could not be restored is not saved.
    """
    if container is not None and not isinstance(container, list | MutableMapping):  # None: it has no name either
        raise StateError(
            f"a {type(container).__qualname__} takes no restored value: use a list or a dict, or a NumPy array, "
            "which is restored in place"
        )
    return functools.partial(put, container, key)


def _object_leaf(name: str, value: Any, container: Any, key: Any) -> ObjectLeaf:
    _assign_to(container, key)
    return ObjectLeaf(name, value, container, key)


class _EmptyLeaf(ObjectLeaf):
    """A mapping that holds nothing: it stays what it is, such as a ``defaultdict``, if it is to hold nothing."""

    __slots__ = ()

    def read(self) -> Any:
        return {}

    def assign(self, new: Any) -> None:
        if new != {}:
            super().assign(new)


def _visit_sequence(walk: Walk, value: Sequence[Any], name: str, container: Any, key: Any) -> None:
    if is_json(value):
        walk.add(_object_leaf(name, value, container, key))
        return
    if isinstance(value, list) and isinstance(container, list | MutableMapping) and _is_of_scalars(value):
        walk.lists[name] = ObjectLeaf(name, value, container, key)
    for number, item in enumerate(value):
        walk.visit(item, join(name, str(number)), value, number)


def _is_of_scalars(value: Any) -> bool:
    """Return True if nothing in a value is restored in place: all is JSON or NumPy scalars. Pure."""
    if isinstance(value, list):
        return all(map(_is_of_scalars, value))
    if type(value) is dict:
        return all(map(_is_of_scalars, value.values()))
    return isinstance(value, np.generic) or is_json(value)


def _visit_array(walk: Walk, value: Array, name: str, container: Any, key: Any) -> None:
    if value.flags.writeable:
        walk.add_tensor(ArrayLeaf(value, name))
    else:
        walk.add_tensor(array_leaf(value, name, _assign_to(container, key)))


def _visit_wrapped(walk: Walk, value: Any, name: str, container: Any, key: Any) -> None:
    if isinstance(value, Sharded):
        walk.add_tensor(sharded_leaf(value, name, _assign_to(container, key)))
    else:
        walk.add_tensor(per_rank_leaf(value, name) if isinstance(value, PerRank) else root_only_leaf(value, name))


def _visit_parts(walk: Walk, value: Parts, name: str, container: Any, key: Any) -> None:
    _visit_mapping(walk, value.parts, name, container, key)
    asked = tuple(join(name, part) for part in value.parts)

    def fit(specs: Mapping[str, TensorSpec], objects: Mapping[str, Any]) -> Fitted:
        return Fitted(unasked=[n for n in (*specs, *objects) if n not in asked and not _is_below(n, asked)])

    walk.add(Open(fit))


def _visit_per_rank_arrays(walk: Walk, value: PerRankArrays, name: str, _container: Any, _key: Any) -> None:
    own = {join(name, part): array for part, array in value.arrays.items()}
    for path, array in own.items():
        walk.add_tensor(per_rank_leaf(PerRank(array), path))

    def fit(specs: Mapping[str, TensorSpec], objects: Mapping[str, Any]) -> Fitted:
        del objects
        found = {path: spec for path, spec in specs.items() if spec.kind == "per-rank" and _is_below(path, [name])}
        return Fitted(
            [_leaf_into(value.arrays, path, path[len(name) + 1 :], spec) for path, spec in found.items()], own
        )

    walk.add(Open(fit))


def _leaf_into(arrays: dict[str, Array], path: str, part: str, spec: TensorSpec) -> TensorLeaf:
    """Return the leaf of a per-rank array of a checkpoint that is put into `arrays`."""
    room = np.empty(0, numpy_dtype(spec.dtype))
    return TensorLeaf(declare(room, path, "per-rank"), lambda: room, functools.partial(arrays.__setitem__, part))


def _is_below(name: str, parents: Sequence[str]) -> bool:
    return any(name.startswith(f"{parent}/") for parent in parents)


def _visit_scalar(walk: Walk, value: np.generic, name: str, container: Any, key: Any) -> None:
    walk.add_tensor(array_leaf(value, name, _assign_to(container, key)))


def _visit_json(walk: Walk, value: Any, name: str, container: Any, key: Any) -> None:
    if is_json(value):
        walk.add(_object_leaf(name, value, container, key))
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
    (PerRankArrays, _visit_per_rank_arrays),
    (Parts, _visit_parts),
    (np.ndarray, _visit_array),
    (np.generic, _visit_scalar),
    ((str, int, float, type(None)), _visit_json),
    (object, _visit_other),
)
