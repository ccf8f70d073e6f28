"""The index of a directory of TFRecords: JSON, checked before anything in it is believed."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hpcckpt import native
from hpcckpt.errors import Problem, list_problems
from hpcckpt.train.datasets.checks import is_whole
from hpcckpt.train.datasets.errors import DatasetDamagedError, DatasetNotFoundError

FILE = "index.json"
FORMAT = "hpcckpt-images-1"
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*\.tfrecord", re.ASCII)
_MAX_BYTES = 1 << 24
_MAX_SIDE = 1 << 16
_CHUNK = 1 << 22


@dataclass(frozen=True, slots=True)
class Shard:
    """A file, and what it must be."""

    file: str
    n_records: int
    nbytes: int
    crc32c: str


@dataclass(frozen=True, slots=True)
class Index:
    """What a directory holds.

    Attributes
    ----------
    name : str
        Of the data set.
    shape : tuple of int
        Height, width and channels of the images.
    white, n_classes : int
        As in `Raw`.
    train, valid : tuple of Shard
        The files; none for validation if the data set does not say which images are.
    source : mapping
        What the data set was made with, where it can be made with different things.
    """

    name: str
    shape: tuple[int, int, int]
    white: int
    n_classes: int
    train: tuple[Shard, ...]
    valid: tuple[Shard, ...] = ()
    source: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        """Return the text of the file."""
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=1) + "\n"


def read_index(directory: Path, remedy: str) -> Index:
    """Return what a directory says it holds. Independent.

    Parameters
    ----------
    directory : Path
        Where.
    remedy : str
        How to have it made, for the error.

    Raises
    ------
    DatasetNotFoundError
        If there is no index.
    DatasetDamagedError
        If it makes no sense; with everything that is wrong.
    """
    path = directory / FILE
    try:
        with path.open("rb") as file:
            text = file.read(_MAX_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        raise DatasetNotFoundError(f"{path} is not there: {remedy}") from None
    try:
        if len(text) > _MAX_BYTES:
            raise ValueError("it is too long")
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DatasetDamagedError(f"{path} is not an index ({error}): {_make_again(directory, remedy)}") from None
    problems = list(_problems(document))
    if problems:
        raise DatasetDamagedError(f"{path}: {list_problems(problems)}: {_make_again(directory, remedy)}")
    return _index(document)


def check_files(directory: Path, index: Index, remedy: str, *, is_thorough: bool) -> None:
    """Compare the files with the index: sizes, or all bytes. Independent.

    Raises
    ------
    DatasetDamagedError
        Naming each file that is absent, or not what it was.
    """
    found = ((directory / shard.file, shard) for shard in (*index.train, *index.valid))
    problems = [Problem(str(path), text) for path, shard in found if (text := _difference(path, shard, is_thorough))]
    if problems:
        raise DatasetDamagedError(f"{list_problems(problems, 5)}: {_make_again(directory, remedy)}")


def crc_of(path: Path) -> str:
    """Return the CRC32C of a file, as the index holds it."""
    crc = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            crc = native.crc32c(chunk, crc)
    return f"{crc:08x}"


def _difference(path: Path, shard: Shard, is_thorough: bool) -> str:
    try:
        nbytes = path.stat().st_size
    except FileNotFoundError:
        return "is not there"
    if nbytes != shard.nbytes:
        return f"has {nbytes} bytes, not {shard.nbytes}"
    return "does not hold the bytes that were written" if is_thorough and crc_of(path) != shard.crc32c else ""


def _make_again(directory: Path, remedy: str) -> str:
    return f"remove {directory}, and make it again: {remedy}"


# -- JSON ----------------------------------------------------------------------------------------


def _index(document: Mapping[str, Any]) -> Index:
    train, valid = (tuple(Shard(**shard) for shard in document[part]) for part in ("train", "valid"))
    height, width, channels = document["shape"]
    plain = {name: document[name] for name in ("name", "white", "n_classes", "source")}
    return Index(shape=(height, width, channels), train=train, valid=valid, **plain)


def _problems(document: Any) -> list[Problem]:
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        return [Problem("format", f"is not {FORMAT!r}")]
    found = [] if isinstance(document.get("name"), str) else [Problem("name", "is no text")]
    if not isinstance(document.get("source"), dict):
        found.append(Problem("source", "is no object"))
    shape = document.get("shape")
    if not (isinstance(shape, list) and len(shape) == 3 and all(_is_within(side, 1, _MAX_SIDE) for side in shape)):
        found.append(Problem("shape", f"is not height, width and channels: {shape!r}"))
    for name, highest in (("white", 255), ("n_classes", 1 << 31)):
        if not _is_within(document.get(name), 1, highest):
            found.append(Problem(name, f"is not from 1 to {highest}: {document.get(name)!r}"))
    for part in ("train", "valid"):
        found += _problems_of_shards(document.get(part), part)
    return found


def _problems_of_shards(shards: Any, part: str) -> list[Problem]:
    if not isinstance(shards, list) or (part == "train" and not shards):
        return [Problem(part, "is no list of files")]
    return [Problem(f"{part}[{i}]", "is no file with counts") for i, shard in enumerate(shards) if not _is_shard(shard)]


def _is_shard(shard: Any) -> bool:
    return (
        isinstance(shard, dict)
        and set(shard) == {"file", "n_records", "nbytes", "crc32c"}
        and isinstance(shard["file"], str)
        and _NAME.fullmatch(shard["file"]) is not None
        and _is_within(shard["n_records"], 1, 1 << 48)
        and _is_within(shard["nbytes"], 1, 1 << 62)
        and isinstance(shard["crc32c"], str)
    )


def _is_within(value: Any, lowest: int, highest: int) -> bool:
    return is_whole(value, lowest) and value <= highest
