"""A bound method that keeps its object not alive, and that can be deep-copied with it."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable
from typing import Any


class WeakCall:
    """Calls a bound method as long as its object is alive.

    A deep copy of the object has a `WeakCall` of the copy: tuners copy callbacks so.
    """

    def __init__(self, method: Callable[..., Any]) -> None:
        self._method = weakref.WeakMethod(method)

    def __call__(self, *args: Any) -> None:
        """Call the method; do nothing if its object is gone. Independent."""
        method = self._method()
        if method is not None:
            method(*args)

    def __deepcopy__(self, memo: dict[int, Any]) -> WeakCall:
        method: Any = self._method()
        if method is None:
            return self
        return WeakCall(getattr(copy.deepcopy(method.__self__, memo), method.__name__))
