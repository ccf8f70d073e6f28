"""Places of names in a file whose names nest: two may have the same place, or one may be in the way of another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from hpcckpt.errors import Problem

Parts = tuple[str, ...]


class Places:
    """The places that are taken in a file.

    Parameters
    ----------
    path_of : callable
        Returns the parts of a name, as the file has them.
    """

    def __init__(self, path_of: Callable[[str], Parts]) -> None:
        self._path_of = path_of
        self._names: dict[Parts, str] = {}
        self._groups: dict[Parts, str] = {}

    def take(self, name: str, label: str = "") -> str:
        """Take the place of a name, which messages call `label`; return why it has none, or "". Independent."""
        path = self._path_of(name)
        above = [path[:n] for n in range(1, len(path))]
        if not path:
            return "is not a name in this format"
        if path in self._names:
            return f"has the same place as {self._names[path]}"
        if path in self._groups:
            return f"is above {self._groups[path]}"
        if other := next((self._names[each] for each in above if each in self._names), ""):
            return f"is below {other}"
        self._names[path] = label or name
        for each in above:
            self._groups.setdefault(each, label or name)
        return ""

    def take_all(self, names: Iterable[str]) -> list[Problem]:
        """Take the places of names; return those that have none, and why. Independent."""
        return [Problem(name, why) for name in names if (why := self.take(name))]

    def room_for(self, values: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
        """Return the values that have a place, which is taken, and the names of the others. Independent."""
        left_out = {problem.loc: None for problem in self.take_all(values)}
        return {name: value for name, value in values.items() if name not in left_out}, list(left_out)
