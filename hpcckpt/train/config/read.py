"""A configuration read from a file: JSON, or Hjson, which has comments and optional commas and quotes.

A number stays what it is written as: ``1.0`` is no integer.  Input that Hjson accepts silently, but that is surely a
mistake, is a problem: a duplicate key, and a text without quotes that includes a comma or a comment, or that is
Python's word for a JSON value (``True``).
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from hpcckpt.train.config.hjson_decode import CLOSED, PYTHONS_WORDS, Loose, Pairs, decoded
from hpcckpt.train.config.plain_values import kind_of, plain
from hpcckpt.train.config_errors import ConfigProblem, TrainConfigError, inside, nearest, shown

MOST_BYTES = 1 << 20
_TEXTS = {"directory", "filename", "filepath", "log_dir", "monitor", "name", "path", "scratch"}
"""Keys whose quoted value is always a text."""
_COMMENT = re.compile(r"\s(#|//|/\*)")


@dataclass(frozen=True, slots=True)
class Document:
    """A configuration as it was read.

    Attributes
    ----------
    raw : object
        The list of train cycles, of what JSON has.
    source : str
        Where it was read.
    problems : tuple of ConfigProblem
        What is wrong with how it is written.
    """

    raw: Any
    source: str
    problems: tuple[ConfigProblem, ...] = ()


def read(path: str | os.PathLike[str]) -> Document:
    """Read a configuration. Independent.

    Parameters
    ----------
    path : path_like
        The file; ``-`` is the standard input.

    Raises
    ------
    TrainConfigError
        If it cannot be read, or its syntax is wrong; it names line and column.
    """
    name = os.fspath(path)
    return parse(_text(name), "standard input" if name == "-" else name)


def parse(text: str, source: str) -> Document:
    """Read a configuration from text; `source` says where it comes from.

    Raises
    ------
    TrainConfigError
        If the syntax is wrong, or there is nothing.
    """
    found = decoded(text, source)
    if found in ({}, []) or found is None:
        _refuse(source, "is empty", 'a configuration is a list of train cycles: [ { "datasets": …, "model": … } ]')
    cycles = [found] if isinstance(found, dict) else found
    if not isinstance(cycles, list):
        _refuse(source, f"is {kind_of(found)}", 'a configuration is a list of train cycles: [ { "model": … } ]')
    problems: list[ConfigProblem] = []
    for i, cycle in enumerate(cycles):
        _look(cycle, f"[{i}]", problems)
    return Document(plain(cycles, "", problems), source, tuple(problems))


def _text(name: str) -> str:
    data = _data(name)
    if len(data) > MOST_BYTES:
        _refuse(name, f"has more than {MOST_BYTES >> 20} MiB: that is no configuration", "give another file")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        _refuse(f"{name}:{line}", f"the byte 0x{data[error.start]:02x} is not UTF-8", "save the file as UTF-8")


def _data(name: str) -> bytes:
    if name == "-":
        if sys.stdin is None:
            _refuse("standard input", "is closed", "give a file, or a configuration on standard input")
        return sys.stdin.buffer.read(MOST_BYTES + 1)
    try:
        with Path(name).open("rb") as file:
            return file.read(MOST_BYTES + 1)
    except FileNotFoundError:
        _refuse(name, "there is no such file", _other_file(Path(name)))
    except IsADirectoryError:
        _refuse(name, "is a directory", "give a file in it")
    except (OSError, ValueError) as error:
        _refuse(name, f"cannot be read: {getattr(error, 'strerror', None) or error}", "give a file that you may read")


def _other_file(path: Path) -> str:
    try:
        found = nearest(path.name, os.listdir(path.parent))
    except OSError:
        return f"there is no directory {path.parent} either"
    return f"did you mean {str(path.parent / found)!r}?" if found else "check the name"


def _refuse(where: str, text: str, remedy: str) -> NoReturn:
    raise TrainConfigError.of([ConfigProblem(where, text, remedy)]) from None


# -- what is written otherwise than it is meant -----------------------------------------------------


def _look(value: Any, where: str, problems: list[ConfigProblem]) -> None:
    """Find what is written otherwise than it is meant."""
    if isinstance(value, Pairs):
        problems += [
            ConfigProblem(inside(where, each), "is there twice", "keep one of them") for each in value.repeated
        ]
        for name, item in value.items():
            if name not in _TEXTS or not isinstance(item, str) or isinstance(item, Loose):
                _look(item, inside(where, name), problems)
    elif isinstance(value, list):
        for i, item in enumerate(value):
            _look(item, inside(where, i), problems)
    elif isinstance(value, str):
        problems += _doubts(value, where)


def _doubts(value: str, where: str) -> Iterable[ConfigProblem]:
    is_loose = isinstance(value, Loose)
    word = value.rstrip(", ") if is_loose else value
    if word in PYTHONS_WORDS:
        yield ConfigProblem(where, f"is the text {value!r}", f"write {PYTHONS_WORDS[word]}")
    elif is_loose and _COMMENT.search(value):
        yield ConfigProblem(
            where, f"without quotes the comment belongs to the text {shown(value)!r}", "put quotes around it"
        )
    elif is_loose and CLOSED.search(value):
        text = f"without quotes the text runs to the end of its line: {shown(value)!r}"
        yield ConfigProblem(where, text, "put quotes around it")
    elif is_loose and is_number(value):
        yield ConfigProblem(
            where, f"is the text {value!r}", "write a number as JSON does, 0.5 or 1e-3; or put quotes around it"
        )


def is_number(text: str) -> bool:
    """Return True if Python would take a text for a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True
