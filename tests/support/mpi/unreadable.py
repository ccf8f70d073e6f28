"""A value whose bytes cannot be had on one rank, and the adapter that says so."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from hpcckpt.state import tree


class Unreadable:
    """A tensor that cannot be copied on the rank where `is_bad`."""

    __module__ = "unreadable"  # an adapter is found by the first part of its classes' module

    def __init__(self, *, is_bad: bool) -> None:
        self.is_bad = is_bad


def leaves(obj: Unreadable, name: str) -> Iterator[tree.Leaf]:
    """Yield the one leaf."""
    array = np.ones(3)

    def read() -> Any:
        if obj.is_bad:
            raise MemoryError("no memory for a copy")
        return array

    yield tree.TensorLeaf(tree.declare(array, name, "replicated"), read, lambda new: None)


tree.ADAPTERS[Unreadable.__module__] = __name__
