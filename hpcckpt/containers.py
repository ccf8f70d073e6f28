"""Containers of JSON values in the types that a state has: tuples, named tuples, kinds of dicts."""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict
from collections.abc import Mapping
from typing import Any


def item_of(container: Any, key: Any) -> Any:
    """Return ``container[key]``, or None if there is no such item. Pure."""
    if isinstance(container, Mapping):
        return container.get(key)
    is_there = isinstance(container, list | tuple) and isinstance(key, int) and 0 <= key < len(container)
    return container[key] if is_there else None


def cast_like(value: Any, like: Any) -> Any:
    """Return JSON with tuples, and kinds of dicts, where `like` has them. Pure."""
    if isinstance(value, list | tuple):
        items = [cast_like(item, item_of(like, number)) for number, item in enumerate(value)]
        is_tuple = isinstance(value, tuple) or isinstance(like, tuple)
        if is_tuple and hasattr(like, "_fields") and len(like) == len(items):
            return type(like)(*items)
        return tuple(items) if is_tuple else items
    if isinstance(value, dict):
        return dict_like({key: cast_like(item, item_of(like, key)) for key, item in value.items()}, like)
    return value


def dict_like(value: dict[Any, Any], like: Any) -> dict[Any, Any]:
    """Return a dict as one of the kind that `like` is. Pure."""
    if isinstance(like, defaultdict):
        return defaultdict(like.default_factory, value)
    return type(like)(value) if isinstance(like, Counter | OrderedDict) else value
