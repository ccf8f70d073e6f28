"""Types of arguments and options that refuse what click's own accept: an empty path, and NaN."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import click


class PathType(click.Path):
    """A path that is not empty: `pathlib` takes "" for the current directory, and a script's variable may be empty.

    One that is a file only, or a directory only, is to be written: what it is below must be a directory.
    """

    def __init__(self, path_type: type[str | Path] = Path, **rules: Any) -> None:
        super().__init__(path_type=path_type, **rules)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path."""
        if not str(value):
            self.fail("is empty; write . for the current directory", param, ctx)
        if not (self.file_okay and self.dir_okay):
            problem = self._problem_above(Path(value))
            if problem:
                self.fail(problem, param, ctx)
        found = super().convert(value, param, ctx)
        if not self.file_okay and os.path.exists(value) and not os.path.isdir(value):  # click refuses files alone
            self.fail(f"{value} is no directory; choose another path", param, ctx)
        return found

    def _problem_above(self, path: Path) -> str:
        above = next(each for each in (*path.parents, Path(path.anchor)) if os.path.lexists(each))
        if not above.is_dir():
            return f"{above} is no directory; choose another path"
        if not self.dir_okay and above != path.parent:
            return f"{path.parent} does not exist; make it first"
        return ""


class FiniteRange(click.FloatRange):
    """A range of numbers without NaN, which is neither below nor above any bound, and without infinities."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number."""
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number", param, ctx)
        return number
