"""What ``state_dict()`` returns as leaves of a state, and back: containers of any kind, which may grow with use.

Names are the paths in it: ``optimizer/state/0/exp_avg``.  What is JSON is stored in the manifest, list by list
(``optimizer/param_groups``); everything else is a tensor.  Names alone do not tell a list from a dict, so containers
are read back by these rules:

1. A dict whose keys are all whole numbers has such keys; others have text.
2. What these rules, or JSON, would get wrong is in one more JSON value, ``.types``, by path: lists and tuples that
   hold tensors, keys that are neither text nor numbers, the order of an ``OrderedDict``, ``bytes``, sets.
3. Tuples within JSON come back as tuples where the object has some at that place now.

A ``state_dict`` grows with use: an optimizer has no moments before its first step.  So on restore the dict that is
handed to ``load_state_dict`` is made after the checkpoint.  What the object has already, of the same shape and dtype,
is filled in place; what it lacks is made.  Only the keys at the top have to be the same, unless the object is known to
look after that itself.
"""

from __future__ import annotations

import importlib
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, cast

import numpy as np

from hpcckpt.core.dtypes import numpy_dtype
from hpcckpt.core.plan import Declaration
from hpcckpt.core.tensors import Extent, TensorSpec
from hpcckpt.errors import Problem, StateError, StateMismatchError
from hpcckpt.state.arrays import JSON_SUFFIX, ArrayLeaf, is_json
from hpcckpt.state.leaves import (
    Array,
    DynamicPart,
    Finish,
    ObjectLeaf,
    Resolved,
    TensorLeaf,
    cast_like,
    dict_like,
    is_below,
    item_of,
    join,
    tuple_like,
)
from hpcckpt.state.walk import Walk

TYPES = ".types"
"""Last part of the name of the JSON value with the types that paths do not show."""

MAKERS = {"torch": "hpcckpt.torch.tensors"}
"""What ``.types`` calls the tensors of a framework -> module of hpcckpt that makes them; see `Maker`."""


class Maker(Protocol):
    """What a module named in `MAKERS` provides."""

    def new(self, spec: TensorSpec) -> tuple[Any, TensorLeaf]:
        """Return a tensor that holds nothing yet, and a leaf to restore into it."""


def visit_state_dict(
    walk: Walk,
    held: Any,
    name: str,
    load: Callable[[dict[Any, Any]], Any],
    *,
    is_free: bool = False,
    default: str = "array",
    free: str | None = None,
) -> None:
    """Take the leaves of a ``state_dict`` into a walk. Independent.

    Parameters
    ----------
    walk : Walk
        What takes them.
    held : mapping
        What ``state_dict()`` returned.
    name : str
        What the names begin with.
    load : callable
        Given the values of a checkpoint, passes them to the object: its ``load_state_dict``.
    is_free : bool
        Take whatever the checkpoint has; otherwise keys and tensors at the top have to be as they are now.
    default : str
        What tensors are unless ``.types`` says otherwise: ``array``, or a key of `MAKERS`.
    free : str, optional
        Of tensors at the top whose keys end so, take any shape and dtype that the checkpoint has.
    """
    if not isinstance(held, Mapping):
        raise StateError(f"its state_dict() returned a {type(held).__qualname__}, not a dict")
    part = _Part(name, held, load, is_free, default, free)
    for path, item in part.items(held, ""):
        if path == TYPES:
            walk.problems.append(Problem(join(name, path), "has a name that hpcckpt uses itself; rename it"))
            continue
        part.values[path] = item
        full = join(name, path)
        walk.visit(item, full, part.values, path)
        if full in walk.tensors:
            part.tensors[path] = walk.tensors[full]
        elif full not in walk.objects:
            part.foreign.add(full)
    walk.problems += [Problem(join(name, path), text) for path, text in part.problems]
    if part.types:
        walk.add(ObjectLeaf(join(name, TYPES), part.types, {}, TYPES))
    walk.add(DynamicPart(part.resolve, name))


@dataclass(slots=True, eq=False)
class _Part:
    """A ``state_dict`` as it is now.

    Attributes
    ----------
    values : dict of str to object
        What it holds, by path; leaves put restored values there.
    tensors : dict of str to TensorLeaf
        The leaves of tensors among them.
    types : dict of str to object
        The value of ``.types``.
    foreign : set of str
        Names of objects with leaves of their own, which are below these names.
    """

    name: str
    held: Mapping[Any, Any]
    load: Callable[[dict[Any, Any]], Any]
    is_free: bool
    default: str
    free: str | None = None
    values: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, TensorLeaf] = field(default_factory=dict)
    types: dict[str, Any] = field(default_factory=dict)
    foreign: set[str] = field(default_factory=set)
    problems: list[tuple[str, str]] = field(default_factory=list)

    # -- from values to paths --------------------------------------------------------------------

    def items(self, value: Any, path: str) -> Iterator[tuple[str, Any]]:
        """Yield what a container holds, with paths; what paths do not show goes into `types`."""
        if isinstance(value, Mapping) and (value or not path):
            yield from self._dict_items(value, path)
        elif isinstance(value, list | tuple) and not is_json(value):
            self.types[path] = "tuple" if isinstance(value, tuple) else "list"
            for number, item in enumerate(value):
                yield from self.items(item, join(path, str(number)))
        else:
            yield path, self._plain(value, path)

    def _dict_items(self, value: Mapping[Any, Any], path: str) -> Iterator[tuple[str, Any]]:
        odd = [key for key in value if not isinstance(key, str) and _encoded(key) is None]
        if odd:
            self.problems += [(path, f"{_kind_name(key)} cannot be saved as a key of a dict") for key in odd]
            return
        segments = _segments(value)
        if _keys_by_rule(segments) != list(value) or (path and isinstance(value, OrderedDict)):
            self.types[path] = {"keys": [[part, _encoded(key)] for part, key in zip(segments, value, strict=True)]}
        for segment, item in zip(segments, value.values(), strict=True):
            yield from self.items(item, join(path, segment))

    def _plain(self, value: Any, path: str) -> Any:
        """Return what is saved of a value that is no container."""
        kind, plain = _kind_of(type(value)), value
        if isinstance(value, bytes):
            plain = np.frombuffer(value, np.uint8)
        elif isinstance(value, complex) and not isinstance(value, np.generic):
            plain = np.complex128(value)
        elif isinstance(value, set | frozenset):
            plain = self._items_of_set(value, path)
        if kind not in (None, self.default):
            self.types[path] = kind
        return plain

    def _items_of_set(self, value: Collection[Any], path: str) -> list[Any]:
        """Return the items as JSON, in the same order on all ranks."""
        odd = [item for item in value if not is_json(_item_as_json(item))]
        self.problems += [(path, f"{_kind_name(item)} cannot be saved as an item of a set") for item in odd]
        items = [] if odd else [_item_as_json(item) for item in value]
        is_ordered = {*map(type, items)} in ({int}, {str})
        return sorted(items, key=None if is_ordered else lambda item: (type(item).__qualname__, repr(item)))

    # -- from a checkpoint to values -------------------------------------------------------------

    def resolve(self, specs: Mapping[str, TensorSpec], objects: Mapping[str, Any]) -> Resolved:
        """Say what becomes of the leaves with a checkpoint. Independent."""
        paths, own_types = self._paths_in((*specs, *objects)), join(self.name, TYPES)
        if not paths:
            return Resolved(dropped=[own_types], ignored=[own_types])
        types = _checked(objects.get(own_types, {}), self.name)
        made: dict[str, Any] = {}
        leaves: list[TensorLeaf | ObjectLeaf] = []
        fresh: dict[str, Callable[[], TensorLeaf | None]] = {}
        for path, full in paths.items():
            if full in objects:
                leaves.append(ObjectLeaf(full, None, made, path))
            elif _converter(types.get(path)) or not self._is_fit(path, specs[full]):
                leaf = _new_leaf(specs[full], types.get(path, self.default), made, path)
                leaves += [] if leaf is None else [leaf]
            elif self.is_free or "/" in path:
                fresh[full] = partial(_new_leaf, specs[full], types.get(path, self.default), made, path)
        gone = self._gone(paths)
        kept = [path for path in self.values if path not in gone]

        def finish() -> None:
            found = {**{path: self.values[path] for path in kept}, **made}
            self.load(_nested(found, types, self.held))

        dropped = [own_types, *(join(self.name, path) for path in gone)]
        return Resolved(leaves, dropped, Finish(finish), [own_types], fresh)

    def _paths_in(self, names: Collection[str]) -> dict[str, str]:
        """Return the names of a checkpoint that this part takes, by path."""
        start = f"{self.name}/" if self.name else ""
        ours = {name[len(start) :]: name for name in names if name.startswith(start)}
        taken = {path: name for path, name in ours.items() if path != TYPES and not is_below(name, self.foreign)}
        if self.is_free:
            return taken
        tops = set(map(_top, self.values))
        return {path: name for path, name in taken.items() if _top(path) in tops}

    def _is_fit(self, path: str, spec: TensorSpec) -> bool:
        """Return True if the present tensor is filled, or its misfit reported; False if a new one is made."""
        own = self.tensors.get(path)
        if own is None:
            return False
        now = own.declaration.spec
        is_same = (now.dtype, now.shape) == (spec.dtype, spec.shape)
        may_differ = self.is_free or "/" in path or (self.free is not None and path.endswith(self.free))
        return is_same or (now.kind, spec.kind) != ("replicated", "replicated") or not may_differ

    def _gone(self, paths: Collection[str]) -> set[str]:
        """Return the paths that the checkpoint has not, of containers that it has."""
        tops = set(map(_top, paths))
        own = {path for path, leaf in self.tensors.items() if leaf.declaration.spec.kind == "per-rank"}
        found = {*paths, *(path for path in own if join(path, JSON_SUFFIX) in paths)}
        foreign = {path for path in self.values if join(self.name, path) in self.foreign}
        return {p for p in self.values if p not in found and p not in foreign and (self.is_free or _top(p) in tops)}


def _top(path: str) -> str:
    return path.partition("/")[0]


def _kind_of(cls: type[Any]) -> str | None:
    """Return how values of a class are called in ``.types``: ``array`` and tensors, and what JSON does not know."""
    if cls not in _kinds:
        kind = next((kind for kind, kinds in _KINDS if issubclass(cls, kinds)), None)
        if kind is None and hasattr(cls, "dtype"):
            modules = {base.__module__.partition(".")[0] for base in cls.__mro__}
            kind = next((module for module in MAKERS if module in modules), None)
        _kinds[cls] = kind
    return _kinds[cls]


_kinds: dict[type[Any], str | None] = {}
"""What `_kind_of` has found out of each class."""

_KINDS: tuple[tuple[str, tuple[type[Any], ...]], ...] = (
    ("array", (np.ndarray,)),
    ("scalar", (np.generic,)),
    ("bytes", (bytes,)),
    ("complex", (complex,)),
    ("tuple", (tuple,)),
    ("set", (set,)),
    ("frozenset", (frozenset,)),
)


def _segments(value: Mapping[Any, Any]) -> list[str]:
    """Return the parts of paths for the keys of a dict, all different."""
    segments: dict[str, None] = {}
    for key in value:
        text = str(key).replace("%", "%25").replace("/", "%2F") if "/" in str(key) else str(key)
        text = {"": "%", ".": "%2E", "..": "%2E%2E"}.get(text, text)
        while text in segments:
            text += "%"
        segments[text] = None
    return list(segments)


_MAX_DIGITS = 640  # of numbers that every Python converts


def _keys_by_rule(segments: Sequence[str]) -> list[Any]:
    is_counted = all(
        segment.isdecimal() and len(segment) <= _MAX_DIGITS and str(int(segment)) == segment for segment in segments
    )
    return [int(segment) for segment in segments] if is_counted and segments else list(segments)


def _kind_name(value: Any) -> str:
    large = " of this size" if isinstance(value, int) else ""
    return f"a {type(value).__qualname__}{large}"


def _item_as_json(item: Any) -> Any:
    """Return an item of a set as it is stored: a tuple as a list, a NumPy scalar as the number or text of Python."""
    if isinstance(item, tuple):
        return list(map(_item_as_json, item))
    return item.item() if isinstance(item, np.generic) else item


def _encoded(key: Any) -> Any:
    """Return a key of a dict as JSON in a list; ``None`` if it cannot be."""
    if isinstance(key, tuple):
        parts = [_encoded(part) for part in key]
        return None if None in parts else [parts]
    return [key] if is_json(key) and not isinstance(key, list | dict) else None


def _decoded(encoded: Any) -> Any:
    (key,) = encoded
    return tuple(_decoded(part) for part in key) if isinstance(key, list) else key


def _checked(types: Any, name: str) -> dict[str, Any]:
    """Return ``.types`` of a checkpoint, which may be anybody's."""
    if isinstance(types, dict) and all(map(_is_type, types.values())):
        return types
    raise StateMismatchError(f"{join(name, TYPES)} of the checkpoint is not what it should be; use an older step")


def _is_type(value: Any) -> bool:
    if isinstance(value, str):
        return True
    keys = value.get("keys") if isinstance(value, dict) else None
    return isinstance(keys, list) and all(
        isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str) and _is_encoded(pair[1]) for pair in keys
    )


def _is_encoded(value: Any) -> bool:
    if not isinstance(value, list) or len(value) != 1:
        return False
    return all(map(_is_encoded, value[0])) if isinstance(value[0], list) else not isinstance(value[0], dict)


# -- making what is not there ----------------------------------------------------------------------


def _new_leaf(spec: TensorSpec, kind: Any, values: dict[str, Any], path: str) -> TensorLeaf | None:
    """Return a leaf for a tensor that only the checkpoint has; its value is put into ``values[path]``."""
    if spec.kind not in {"replicated", "root"}:
        return None  # which part of it would be this rank's is unknown
    if kind in MAKERS:
        maker = cast(Maker, importlib.import_module(MAKERS[kind]))
        values[path], leaf = maker.new(spec)
        return leaf
    array = np.empty(spec.shape, numpy_dtype(spec.dtype))
    convert = _converter(kind)
    if convert is None:
        values[path] = array
        return ArrayLeaf(array, spec.name, spec.kind)

    def assign(new: Array) -> None:
        values[path] = convert(new)

    declaration = Declaration(spec, Extent.whole(spec.shape))
    return TensorLeaf(declaration, lambda: array, assign)


def _converter(kind: Any) -> Callable[[Array], Any] | None:
    return _CONVERTERS.get(kind) if isinstance(kind, str) else None


_CONVERTERS: Mapping[str, Callable[[Array], Any]] = {
    "scalar": lambda array: array[()],
    "complex": lambda array: complex(array[()]),
    "bytes": lambda array: array.tobytes(),
}


class _Node(dict[str, Any]):
    """A container that is still a dict of parts of paths."""


def _nested(values: Mapping[str, Any], types: Mapping[str, Any], like: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return what ``load_state_dict`` is given. Pure."""
    root = _Node()
    for path, value in values.items():
        *parts, last = path.split("/")
        node = root
        for part in parts:
            node = node.setdefault(part, _Node())
            if not isinstance(node, _Node):
                raise StateMismatchError(f"{path!r} of the checkpoint is below a value; use an older step")
        node[last] = value
    found = _converted(root, "", types, like)
    return found if isinstance(found, dict) else dict(enumerate(found))


def _converted(value: Any, path: str, types: Mapping[str, Any], like: Any) -> Any:
    kind = types.get(path)
    if not isinstance(value, _Node):
        return _as_leaf(value, kind, like)
    keys = _keys_of(value, kind, path, like)
    parts = {
        key: _converted(item, join(path, segment), types, item_of(like, key))
        for key, (segment, item) in zip(keys, value.items(), strict=True)
    }
    if kind in ("list", "tuple"):
        items = [parts[key] for key in sorted(parts)]
        return tuple_like(items, like) if kind == "tuple" else items
    if isinstance(kind, dict):
        order = (_decoded(encoded) for _, encoded in kind["keys"])
        parts = {key: parts[key] for key in (*order, *parts) if key in parts}  # last what the checkpoint has not
    elif all(isinstance(key, int) for key in parts):
        parts = {key: parts[key] for key in sorted(parts)}
    return dict_like(parts, like)


def _keys_of(node: _Node, kind: Any, path: str, like: Any) -> list[Any]:
    if isinstance(kind, dict):
        kept = dict(zip(_segments(like), like, strict=True)) if isinstance(like, Mapping) else {}
        keys = {**kept, **{segment: _decoded(encoded) for segment, encoded in kind["keys"]}}
        if keys.keys() >= node.keys():
            return [keys[segment] for segment in node]
        raise StateMismatchError(f"the keys of {path!r} in the checkpoint are not known; use an older step")
    keys_by_rule = _keys_by_rule(list(node))
    if kind in ("list", "tuple") and not all(isinstance(key, int) for key in keys_by_rule):
        raise StateMismatchError(f"{path!r} of the checkpoint is no {kind}; use an older step")
    return keys_by_rule


def _item_of_set(item: Any) -> Any:
    if isinstance(item, dict):
        raise StateMismatchError("a set of the checkpoint holds a dict; use an older step")
    return tuple(map(_item_of_set, item)) if isinstance(item, list) else item


def _as_leaf(value: Any, kind: Any, like: Any) -> Any:
    if kind in ("set", "frozenset") and isinstance(value, list):
        items = map(_item_of_set, value)
        return set(items) if kind == "set" else frozenset(items)
    if kind == "tuple" and isinstance(value, list):
        value = tuple(value)
    return cast_like(value, like)
