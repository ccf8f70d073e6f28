"""The rows of the table of features: a function each, whose docstring is what the table shows."""

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
"""What the letter of a row stands for."""
Check = Callable[["Work"], str]
C = TypeVar("C", bound=Check)


class NeedsError(Exception):
    """What a row shows cannot be run on this machine.

    Parameters
    ----------
    what : str
        What is missing: ``"a GPU"``, ``"the network"``.
    tried : str
        What was run, and what it printed.
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
        What a user of the original has, in a user's words.
    verdict : str
        ``"works"``, or ``"better"`` than the original, where the row passes.
    shown : str
        How it is shown.
    check : callable
        Returns the line that is the evidence, or raises.
    """

    name: str
    feature: str
    verdict: str
    shown: str
    check: Check


ROWS: dict[str, Row] = {}
"""All rows, by name; `names` has their order."""


def row(verdict: str) -> Callable[[C], C]:
    """Return a decorator that registers the function ``t1`` as the row ``T1``; its docstring says what and how.

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
"""How many rows a system has, by its letter."""
PAGE = ROOT / "docs" / "features.md"


def names() -> list[str]:
    """Return the names of all rows, system by system."""
    return sorted(ROWS, key=lambda name: (list(SYSTEMS).index(name[0]), int(name[1:])))


def page() -> str:
    """Return the text of ``docs/features.md``: what it has before its first table, and a table for each system."""
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
