"""Types of arguments and options that refuse what click's own accept: an empty path, and NaN."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import click


class PathType(click.Path):
    """A path that is not empty: `pathlib` takes "" for the current directory, and a script's variable may be empty."""

    def __init__(self, path_type: type[str | Path] = Path, **rules: Any) -> None:
        super().__init__(path_type=path_type, **rules)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path."""
        if not str(value):
            self.fail("is empty; write . for the current directory", param, ctx)
        return super().convert(value, param, ctx)


class FiniteRange(click.FloatRange):
    """A range of numbers without NaN, which is neither below nor above any bound, and without infinities."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number."""
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number", param, ctx)
        return number
