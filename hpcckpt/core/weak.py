"""Tables of objects that are forgotten with their last user."""

from __future__ import annotations

from typing import TypeVar
from weakref import WeakValueDictionary

K = TypeVar("K")
V = TypeVar("V")


def living(table: WeakValueDictionary[K, V]) -> list[V]:
    """Return the values that still exist, in the order they were added. Independent.

    Other threads may add some meanwhile, which ends an iteration of the table itself by a RuntimeError.
    """
    return [value for ref in table.valuerefs() if (value := ref()) is not None]
