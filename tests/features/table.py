"""The table of features: each row is a function, and its docstring is the text of the row."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from tests.support.paths import ROOT

if TYPE_CHECKING:
    from tests.features.work import Work

SYSTEMS = {
    "T": "TMCI",
    "A": "The checkpointing tutorial",
    "L": "TFLMS",
    "N": "The notebook of TFLMS",
    "K": "ktf",
    "C": "The outline of the project",
}
"""The system that each row letter refers to."""
Check = Callable[["Work"], str]
C = TypeVar("C", bound=Check)


class NeedsError(Exception):
    """Report that a row cannot run on this machine.

    Parameters
    ----------
    what : str
        What is missing: ``"a GPU"``, ``"the network"``.
    tried : str
        The command that was run, and its output.
    """

    def __init__(self, what: str, tried: str) -> None:
        super().__init__(f"needs {what}: {tried}")
        self.what, self.tried = what, tried


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table.

    Attributes
    ----------
    name : str
        ``"T1"``.
    feature : str
        A feature of the original system, in a user's words.
    verdict : str
        The verdict if the row passes: ``"works"``, or ``"better"`` if hpcckpt is better than the original.
    shown : str
        How the row shows the feature.
    check : callable
        Returns the line of evidence, or raises.
    """

    name: str
    feature: str
    verdict: str
    shown: str
    check: Check


ROWS: dict[str, Row] = {}
"""All rows, by name; `names` returns their order."""


def row(verdict: str) -> Callable[[C], C]:
    """Return a decorator that registers the function ``t1`` as the row ``T1``.

    The first line of the function's docstring is the row's name and feature. The text after it is how the row shows it.

    Parameters
    ----------
    verdict : str
        ``"works"`` or ``"better"``.
    """
    assert verdict in {"works", "better"}

    def register(check: C) -> C:
        first, _, rest = inspect.cleandoc(check.__doc__ or "").partition("\n")
        name, _, feature = first.partition(": ")
        shown = re.sub(r"\s+", " ", rest).strip()
        assert name.lower() == check.__name__, f"{check.__name__}: its docstring begins with {name!r}"
        assert feature, f"{name}: no feature"
        assert shown, f"{name}: no line on how it is shown"
        assert name not in ROWS, f"{name} twice"
        ROWS[name] = Row(name, feature.rstrip("."), verdict, shown.rstrip("."), check)
        return check

    return register


N_ROWS = {"T": 16, "A": 22, "L": 22, "N": 8, "K": 26, "C": 9}
"""The number of rows of each system, by letter."""
PAGE = ROOT / "docs" / "features.md"


def names() -> list[str]:
    """Return the names of all rows, sorted by system and number."""
    return sorted(ROWS, key=lambda name: (list(SYSTEMS).index(name[0]), int(name[1:])))


def page() -> str:
    """Return the text of ``docs/features.md``.

    It is the text of the present file before the first table, then a table for each system.
    """
    head = PAGE.read_text(encoding="utf-8").partition("\n## ")[0].rstrip("\n")
    parts = []
    for letter, system in SYSTEMS.items():
        rows = [ROWS[name] for name in names() if name[0] == letter]
        lines = [f"| {each.name} | {each.feature} | {each.verdict} | {each.shown} |" for each in rows]
        parts.append(
            "\n".join([f"## {system}", "", "| row | feature | if it passes | how it is shown |", "|---|---|---|---|"])
        )
        parts[-1] += "\n" + "\n".join(lines)
    return "\n\n".join([head, *parts]) + "\n"
