"""State to named leaves, and leaves back to state.

A *leaf* is one tensor or one small object of the state (:mod:`hpcckpt.state.leaves`).  Mappings and sequences are
walked here; arrays and JSON become leaves in :mod:`hpcckpt.state.arrays`; frameworks have adapters in their own
packages, found by the module that defines an object's class, so that nothing is imported that the program itself has
not imported.
"""

from __future__ import annotations

import functools
import importlib
import logging
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any, Protocol, cast

import numpy as np

from hpcckpt.core.dtypes import numpy_dtype
from hpcckpt.core.tensors import TensorSpec
from hpcckpt.errors import Problem, StateError, list_problems
from hpcckpt.state.arrays import (
    ArrayLeaf,
    Parts,
    PerRank,
    PerRankArrays,
    RootOnly,
    Sharded,
    array_leaf,
    as_bytes,
    conversion,
    declare,
    is_json,
    per_rank_leaf,
    plain,
    root_only_leaf,
    sharded_leaf,
)
from hpcckpt.state.leaves import (
    Array,
    Assign,
    DynamicPart,
    Finish,
    Holder,
    Leaf,
    ObjectLeaf,
    Resolved,
    StagedPart,
    Stager,
    StateTree,
    TensorLeaf,
    is_below,
    join,
    leaf_name,
    put,
    tuple_like,
)
from hpcckpt.state.plain_values import filled_when_empty, value_leaves
from hpcckpt.state.state_dict import visit_state_dict
from hpcckpt.state.walk import TooDeepError, Visitor, Walk

__all__ = [
    "ADAPTERS",
    "Adapter",
    "Array",
    "ArrayLeaf",
    "Assign",
    "DynamicPart",
    "Finish",
    "Holder",
    "Leaf",
    "ObjectLeaf",
    "Parts",
    "PerRank",
    "PerRankArrays",
    "Resolved",
    "RootOnly",
    "Sharded",
    "StagedPart",
    "Stager",
    "StateTree",
    "TensorLeaf",
    "Visitor",
    "Walk",
    "array_leaf",
    "as_bytes",
    "declare",
    "flatten",
    "is_below",
    "is_json",
    "join",
    "leaf_name",
    "plain",
    "state_dict_leaves",
    "tuple_like",
]

_log = logging.getLogger("hpcckpt")
_GIVE = "give something like what was saved, with arrays of the same shapes"
ADAPTERS = {
    "keras": "hpcckpt.keras.model.state",
    "tensorflow": "hpcckpt.tensorflow.state",
    "horovod": "hpcckpt.keras.model.state",
    "torch": "hpcckpt.torch.state",
}
"""Top-level module that defines a class -> module of hpcckpt with ``leaves(obj, name)``; see `Adapter`."""


class Adapter(Protocol):
    """What a module named in `ADAPTERS` provides."""

    def leaves(self, obj: Any, name: str) -> Iterator[Leaf] | None:
        """Yield the leaves of `obj`, names starting with `name`; ``None`` if it is not the adapter's."""


def flatten(state: Any, *, is_free: bool = False) -> StateTree:
    """Return the leaves of `state`. Independent.

    Parameters
    ----------
    state : object
        The state.
    is_free : bool
        Objects take whatever keys their ``state_dict`` has in the checkpoint.

    Raises
    ------
    StateError
        Naming every value that cannot be saved and every bad or repeated name.
    """
    walk = Walk(_visitors, is_free)
    try:
        walk.visit(state, "", None, None)
    except TooDeepError as error:
        walk.problems.append(Problem(f"{str(error)[:40]}…", "is nested too deep, or holds itself"))
    walk.problems += _clashes(walk.tensors)
    if walk.problems:
        raise StateError(f"this state cannot be saved: {list_problems(walk.problems)}")
    tensors = {name: walk.tensors[name] for name in sorted(walk.tensors)}
    objects = {name: walk.objects[name] for name in sorted(walk.objects)}
    return StateTree(tensors, objects, tuple(walk.finishes), lists=walk.lists, repeated=walk.repeated)


def _clashes(tensors: Mapping[str, TensorLeaf]) -> Iterator[Problem]:
    """Yield names that are also what readers call one rank's part of another tensor: ``NAME#RANK``. Pure."""
    for name in tensors:
        base, mark, rank = name.rpartition("#")
        if mark and rank.isdecimal() and base in tensors and tensors[base].declaration.spec.kind == "per-rank":
            yield Problem(repr(name), f"is also what rank {rank}'s part of {base!r} is called: rename one of them")


def state_dict_leaves(
    held: Any,
    name: str,
    load: Callable[[dict[Any, Any]], Any],
    *,
    is_free: bool = False,
    default: str = "array",
    free: str | None = None,
) -> Iterator[Leaf]:
    """Yield the leaves of a ``state_dict``, as `visit_state_dict` takes it; for adapters. Independent.

    Raises
    ------
    StateError
        Naming every value that cannot be saved.
    """
    walk = Walk(_visitors)
    visit_state_dict(walk, held, name, load, is_free=is_free, default=default, free=free)
    if walk.problems:
        raise StateError(list_problems(walk.problems))
    yield from walk.tensors.values()
    yield from walk.objects.values()
    yield from walk.finishes


class _Visitors(dict[type[Any], Visitor]):
    """What to do with values of a class: found out once for each."""

    def __missing__(self, cls: type[Any]) -> Visitor:
        own = next(visit for kinds, visit in _VISITORS if issubclass(cls, kinds))
        adapter = _adapter_of(cls)
        self[cls] = own if adapter is None else functools.partial(_visit_adapted, adapter, own)
        return self[cls]


_visitors = _Visitors()


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
    if not hasattr(value, "shape"):  # tensors and variables are compared by their memory
        walk.enter(value, name)
    for leaf in leaves:
        walk.add(leaf)


def _visit_mapping(walk: Walk, value: Mapping[Any, Any], name: str, container: Any, key: Any) -> None:
    walk.enter(value, name)
    if not value and name:
        walk.add(_EmptyLeaf(name, value, container, key))
        if isinstance(value, MutableMapping):
            walk.add(filled_when_empty(name, value))
    for own_key, item in value.items():
        if isinstance(own_key, str):
            walk.visit(item, f"{name}/{own_key}" if name else own_key, value, own_key)
        else:
            is_optimizers = isinstance(container, Mapping) and "param_groups" in container
            remedy = "; pass the optimizer itself, not its state_dict()" if is_optimizers else ""
            walk.problems.append(Problem(name or "state", f"key {own_key!r} is not a string{remedy}"))


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
    walk.enter(value, name)
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
        walk.enter(value, name)
        walk.add_tensor(per_rank_leaf(value, name) if isinstance(value, PerRank) else root_only_leaf(value, name))


def _visit_parts(walk: Walk, value: Parts, name: str, container: Any, key: Any) -> None:
    _visit_mapping(walk, value.parts, name, container, key)
    parts = tuple(join(name, part) for part in value.parts)

    def resolve(specs: Mapping[str, TensorSpec], objects: Mapping[str, Any]) -> Resolved:
        made = {
            full: value_leaves(full, specs, objects, found)
            for full, found in ((join(name, part), found) for part, found in value.values.items())
        }
        for full in (each for each, leaves in made.items() if leaves is None):
            _log.warning(
                "hpcckpt: %s is more than plain values in the checkpoint, and is not restored: %s", full, _GIVE
            )
        asked = {*parts, *(full for full, leaves in made.items() if leaves)}
        ignored = [n for n in (*specs, *objects) if n not in asked and not is_below(n, asked)]
        return Resolved([leaf for leaves in made.values() for leaf in leaves or ()], ignored=ignored)

    walk.add(DynamicPart(resolve, name))


def _visit_per_rank_arrays(walk: Walk, value: PerRankArrays, name: str, _container: Any, _key: Any) -> None:
    own = {join(name, part): array for part, array in value.arrays.items()}
    walk.enter(value, name)
    for path, array in own.items():
        walk.add_tensor(per_rank_leaf(PerRank(array), path))

    def resolve(specs: Mapping[str, TensorSpec], objects: Mapping[str, Any]) -> Resolved:
        del objects
        found = {path: spec for path, spec in specs.items() if spec.kind == "per-rank" and is_below(path, [name])}
        return Resolved(
            [_leaf_into(value.arrays, path, path[len(name) + 1 :], spec) for path, spec in found.items()], own
        )

    walk.add(DynamicPart(resolve, name))


def _leaf_into(arrays: dict[str, Array], path: str, part: str, spec: TensorSpec) -> TensorLeaf:
    """Return the leaf of a per-rank array of a checkpoint that is put into `arrays`."""
    room = np.empty(0, numpy_dtype(spec.dtype))
    return TensorLeaf(declare(room, path, "per-rank"), lambda: room, functools.partial(arrays.__setitem__, part))


def _visit_scalar(walk: Walk, value: np.generic, name: str, container: Any, key: Any) -> None:
    walk.add_tensor(array_leaf(value, name, _assign_to(container, key)))


def _visit_json(walk: Walk, value: Any, name: str, container: Any, key: Any) -> None:
    if is_json(value):
        walk.add(_object_leaf(name, value, container, key))
    elif isinstance(value, int) and not isinstance(value, bool):
        raise StateError("this whole number has more than 4,096 bits: save it as text or as an array")
    elif isinstance(value, str):
        raise StateError("this text has characters that are no valid Unicode: save its bytes as an array")
    else:
        _visit_other(walk, value, name, container, key)


def _visit_other(walk: Walk, value: Any, name: str, _container: Any, _key: Any) -> None:
    """Walk the object's state_dict; one like it is passed back to the object once it is filled."""
    if not (hasattr(value, "state_dict") and hasattr(value, "load_state_dict")):
        raise StateError(f"{type(value).__module__}.{type(value).__qualname__} cannot be saved: {_substitute(value)}")
    walk.enter(value, name)
    visit_state_dict(walk, walk.state_dict_of(value), name, value.load_state_dict, is_free=walk.is_free)


def _substitute(value: Any) -> str:
    """Return what to pass in place of an object that cannot be saved. Pure."""
    if isinstance(value, np.random.Generator | np.random.RandomState):
        return conversion(value)
    return "use arrays, JSON values, or an object with state_dict() and load_state_dict()"


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
