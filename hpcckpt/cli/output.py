"""Where output goes: data to stdout, as JSON or a table; messages to stderr."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from typing import IO, Any

import click

from hpcckpt.cli.text import one_line
from hpcckpt.collective.communicator import launched_rank
from hpcckpt.core.std_streams import write_message

_COLOURS = {
    "yes": "green", "OK": "green", "ok": "green",
    "NO": "red", "CORRUPT": "red", "problem": "red",
    "NOT CHECKED": "yellow", "warning": "yellow",
}  # fmt: skip
_STEERING = re.compile(r"\x1b(?!\[[0-9;]*m)|[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f-\x9f]")


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table."""

    title: str
    is_number: bool = False


def is_fancy(stream: IO[str] | None) -> bool:
    """Return True if a stream gets colours and progress bars: it is a terminal, and they are not disabled.

    Under a launcher there are none: Open MPI gives each rank a terminal, whatever reads it.
    """
    is_plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or launched_rank() is not None
    return not is_plain and getattr(stream, "isatty", lambda: False)()  # None where the shell closed it


def log(message: str, *, is_quiet: bool = False) -> None:
    """Write a message for people to stderr, if it can be written."""
    if not is_quiet:
        write_message(harmless(message))


def harmless(text: str) -> str:
    """Return text without control sequences except colours: a checkpoint may be from an untrusted source."""
    return _STEERING.sub("\N{REPLACEMENT CHARACTER}", text)


def flush_stdout() -> None:
    """Write what is buffered, while a failure can still be reported; a shell may have closed stdout (``>&-``)."""
    if sys.stdout is not None:
        sys.stdout.flush()


@contextlib.contextmanager
def stdout_for_json(*, is_json: bool) -> Iterator[None]:
    """Send what a program that is run prints to stderr, if stdout is for a JSON document; on all threads."""
    if not is_json:
        yield
    elif sys.stderr is not None:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    else:  # the caller closed it
        with open(os.devnull, "w", encoding="utf-8") as nowhere, contextlib.redirect_stdout(nowhere):
            yield


def write_json(document: Any) -> None:
    """Write a JSON document to stdout; NaN and infinities, which JSON has not, become strings."""
    click.echo(json.dumps(plain(document), indent=2))


def plain(value: Any) -> Any:
    """Return a value made of what JSON has."""
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return str(value) if isinstance(value, os.PathLike) else value


def write_table(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    """Write a table to stdout."""
    titles = [one_line(column.title) for column in columns]
    rows = [[one_line(cell) for cell in row] for row in rows]
    widths = [max(map(len, cells)) for cells in zip(titles, *rows, strict=True)]
    is_coloured = is_fancy(sys.stdout)
    write_line(_table_line(titles, columns, widths), is_bold=is_coloured)
    for row in rows:
        write_line(_table_line(row, columns, widths, is_coloured=is_coloured))


def write_line(line: str, *, is_bold: bool = False) -> None:
    """Write a line of data to stdout."""
    text = harmless(line)
    click.echo(click.style(text, bold=True) if is_bold else text, color=is_fancy(sys.stdout))


def coloured(word: str) -> str:
    """Return a verdict in its colour if stdout shows colours."""
    return click.style(word, fg=_COLOURS[word]) if word in _COLOURS and is_fancy(sys.stdout) else word


def _table_line(
    cells: Sequence[str], columns: Sequence[Column], widths: Sequence[int], *, is_coloured: bool = False
) -> str:
    padded = [
        cell.rjust(width) if column.is_number else cell.ljust(width)
        for cell, column, width in zip(cells, columns, widths, strict=True)
    ]
    if is_coloured:
        padded = [
            text.replace(cell, coloured(cell)) if cell in _COLOURS else text
            for text, cell in zip(padded, cells, strict=True)
        ]
    return ("  " + "  ".join(padded)).rstrip()


def write_fields(fields: Sequence[tuple[str, str]]) -> None:
    """Write names and values to stdout, one pair a line."""
    width = max(len(name) for name, _ in fields)
    for name, value in fields:
        write_line(one_line(f"{name.ljust(width)}  {value}".rstrip()))
