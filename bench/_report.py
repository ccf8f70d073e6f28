"""What a benchmark says: a table for people, JSON for programs and for ``report.py``."""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from _machine import cpu, file_system, versions
from _rounds import Rounds, spread

from hpcckpt import native

Spread = dict[str, float] | None
WIDTH = 132


@dataclass
class Table:
    """Rows of cells, with what a figure means nothing without.

    Attributes
    ----------
    title : str
        What was measured, and where.
    columns : list of str
        Their heads.
    rows : list of list of str
        The cells.
    notes : list of str
        Lines below the table.
    """

    title: str
    columns: list[str]
    rows: list[list[str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def machine_facts(directory: str) -> dict[str, Any]:
    """Return what a figure means nothing without."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "cpu": cpu(),
        "versions": versions(),
        "file_system": file_system(directory),
        "implementation": native.IMPLEMENTATION,
    }


def place_of(facts: dict[str, Any]) -> str:
    """Return the file system's name, and that it is memory where it is."""
    kind = facts["file_system"]
    return f"{kind} (memory)" if kind in {"tmpfs", "ramfs"} else kind


def condition(found: Rounds, facts: dict[str, Any]) -> str:
    """Return one line on how the machine was."""
    memcpy = spread(found.memcpy)
    speed = f"memcpy {memcpy['median'] / 1e9:.1f} GB/s, " if memcpy else ""
    return (
        f"{facts['cores']} cores, {speed}load {min(found.load):.1f} to {max(found.load):.1f}, "
        f"{len(found.load)} rounds, {found.discarded} measurements discarded, {facts['implementation']} part"
    )


def figure(value: Spread, unit: float = 1.0, digits: int = 2) -> list[str]:
    """Return two cells: the median, and least to most."""
    if value is None:
        return ["", ""]
    least, median, most = (value[key] / unit for key in ("least", "median", "most"))
    return [f"{median:.{digits}f}", f"{least:.{digits}f} to {most:.{digits}f}"]


def publish(table: Table, args: argparse.Namespace, data: dict[str, Any]) -> None:
    """Print a table with the machine below it, and write it with the data to ``--json`` if that was asked for."""
    table.notes += [cpu(), ", ".join(f"{name} {version}" for name, version in versions().items())]
    from rich.console import Console
    from rich.table import Table as RichTable

    console = Console(width=WIDTH)  # what mpirun shows as a terminal is always 80 wide
    shown = RichTable(*table.columns, title=table.title, title_justify="left")
    for row in table.rows:
        shown.add_row(*row)
    console.print(shown)
    for note in table.notes:
        console.print(note, highlight=False)
    if args.json:
        path = Path(args.json)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({**data, "table": vars(table)}), encoding="utf-8")
