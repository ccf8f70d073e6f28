"""Lists of a step by the names that the state has: one JSON value, or a value for each item.

A list of Python numbers is saved as one JSON value, a list that holds NumPy scalars or arrays item by item. A program
that starts with ``[]`` or ``[0.0]`` and later appends NumPy scalars saves another form than it has when it resumes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from hpcckpt.core.tensors import TensorSpec
from hpcckpt.state.leaves import ObjectLeaf, StateTree, TensorLeaf, item_of
from hpcckpt.state.state_dict import TYPES


class StoredValues(NamedTuple):
    """The values of a step by name."""

    specs: dict[str, TensorSpec]
    objects: dict[str, Any]


Convert = Callable[[str, Any], Any]
"""Given the name of a tensor of the step, and what the list has there now, return the item of the list.

Raises `UnknownError` if it is not a single value.
"""


class UnknownError(Exception):
    """What a step has below the name of a list is not a list of single values."""


def match_lists(tree: StateTree, stored: StoredValues, convert: Convert) -> tuple[StateTree, StoredValues]:
    """Return state and step with the same names for the items of their lists. Independent.

    A list of the state whose items are leaves becomes one leaf if the step has other items.
    """
    named = _named_as_in(tree, stored, convert)
    differing = {*tree.tensors, *tree.objects} ^ {*named.specs, *named.objects} if tree.lists else set()
    changed = {_parent_in(name, tree.lists) for name in differing} - {None}
    if not changed:
        return tree, named
    joined = _named_as_in(_with_whole(tree, changed), stored, convert)
    whole = _with_whole(tree, changed & joined.objects.keys())
    return whole, _named_as_in(whole, stored, convert)


def _with_whole(tree: StateTree, lists: Collection[str | None]) -> StateTree:
    """Return the tree with some lists as one leaf each. Pure."""
    leaves: dict[str, TensorLeaf | ObjectLeaf] = {**tree.tensors, **tree.objects}
    leaves = {name: leaf for name, leaf in leaves.items() if _parent_in(name, lists) is None}
    leaves |= {name: leaf for name, leaf in tree.lists.items() if name in lists}
    return replace(tree.with_leaves(leaves), lists={})


def _parent_in(name: str, names: Collection[str | None]) -> str | None:
    """Return the outermost container of a leaf that is, or is in, one of `names`. Pure."""
    return next((parent for parent in (*_parents(name), name) if parent in names), None)


def _parents(name: str) -> Iterator[str]:
    """Yield the names of the containers that a leaf is in, the outermost first. Pure."""
    return (name[:at] for at, char in enumerate(name) if char == "/")


def _named_as_in(tree: StateTree, stored: StoredValues, convert: Convert) -> StoredValues:
    """Return the values of a step, its lists split and joined as the state has them. Independent."""
    split = StoredValues(stored.specs, _split(stored.objects, tree))
    return _joined(split, tree, convert)


def _split(objects: Mapping[str, Any], tree: StateTree) -> dict[str, Any]:
    """Return JSON values, those of lists that the state has item by item under the names of the items. Pure."""
    own = tree.tensors.keys() | tree.objects.keys()
    todo = [name for name, value in objects.items() if value and isinstance(value, list) and name not in own]
    parents = {parent for name in own for parent in _parents(name)} if todo else set()
    found = dict(objects)
    while todo:
        name = todo.pop()
        if name not in parents:
            continue
        value = found.pop(name)
        items = {
            f"{name}/{key}": item for key, item in (value.items() if isinstance(value, dict) else enumerate(value))
        }
        found |= items
        todo += [each for each, item in items.items() if item and isinstance(item, list | dict) and each not in own]
    return found


def _joined(stored: StoredValues, tree: StateTree, convert: Convert) -> StoredValues:
    """Return the values of a step, those of lists that the state has as one value in one. Independent."""
    names = (*stored.specs, *stored.objects)
    lists = {
        name: leaf.value
        for name, leaf in tree.objects.items()
        if isinstance(leaf.value, list | tuple) and name not in stored.objects and name not in stored.specs
    }
    below: dict[str, dict[str, str]] = defaultdict(dict)
    for name in names if lists else ():
        parent = _parent_in(name, lists)
        if parent is not None:
            below[parent][name[len(parent) + 1 :]] = name
    specs, objects = dict(stored.specs), dict(stored.objects)
    for parent, paths in below.items():
        if not any(map(_is_container, lists[parent])) and not any(name in specs for name in paths.values()):
            continue  # of objects: a list of JSON alone is saved as one value
        try:
            objects[parent] = _item(paths, lists[parent], stored, convert)
        except UnknownError:
            continue
        for name in paths.values():
            specs.pop(name, None)
            objects.pop(name, None)
    return StoredValues(specs, objects)


def _item(paths: Mapping[str, str], like: Any, stored: StoredValues, convert: Convert) -> Any:
    """Return a value that a step has under one name, or a container of values under their paths in it."""
    if "" in paths:
        name = paths[""]
        return stored.objects[name] if name in stored.objects else convert(name, like)
    if not _is_container(like):
        if any("/" in path or path.isdecimal() or path == TYPES for path in paths):
            raise UnknownError  # names do not show whether it is a list or a dict; an object has types
        like = {}
    parts: dict[str, dict[str, str]] = defaultdict(dict)
    for path, name in paths.items():
        key = _key(path, like)
        parts[key][path[len(key) + 1 :]] = name
    if isinstance(like, dict):
        return {key: _item(part, item_of(like, key), stored, convert) for key, part in parts.items()}
    if parts.keys() != {str(number) for number in range(len(parts))}:
        raise UnknownError
    other = next(filter(_is_container, like), None)  # what further items are like
    likes = [*like, *[other] * len(parts)]
    return [_item(parts[str(number)], likes[number], stored, convert) for number in range(len(parts))]


def _is_container(value: Any) -> bool:
    return isinstance(value, list | tuple | dict)


def _key(path: str, like: Any) -> str:
    """Return the first key of a path in a container; a key of a dict may have a '/'. Pure."""
    if isinstance(like, dict):
        known = next((key for key in like if path == key or path.startswith(f"{key}/")), None)
        if known is None and "/" in path:
            raise UnknownError
        return path if known is None else known
    return path.partition("/")[0]
