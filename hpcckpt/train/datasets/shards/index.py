"""Where each record of some shards begins: found once, and kept beside them.

A file of TFRecords is a row of records: 8 bytes length, 4 bytes checksum of these, the data, 4 bytes checksum of it. So
the positions of all records are found by reading 12 bytes of each; TensorFlow verifies the data whenever it is read.
"""

from __future__ import annotations

import os
import struct
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from hpcckpt import native
from hpcckpt.core import files
from hpcckpt.errors import OptionError, Problem, list_problems
from hpcckpt.format import layout
from hpcckpt.rundir.atomic_files import fsync_file
from hpcckpt.train.datasets.errors import DatasetDamagedError, DatasetNotFoundError
from hpcckpt.train.datasets.images import Integers

FILE = "records.npz"
CLASSES = "classes.txt"
_FORMAT = "hpcckpt-records-1"
_HEAD = struct.Struct("<QI")
_AROUND = _HEAD.size + 4
"""Bytes of a record beside its data."""
_MAX_NAMED = 5


@dataclass(frozen=True, slots=True)
class IndexedShard:
    """A file of TFRecords.

    Attributes
    ----------
    file : str
        Its name.
    nbytes : int
        Its size.
    offsets : numpy.ndarray
        Where each record begins.
    """

    file: str
    nbytes: int
    offsets: Integers = field(compare=False)


def read_shards(directory: Path, patterns: Sequence[str]) -> list[list[IndexedShard]]:
    """Return the shards of a directory, for each pattern those that no later one matches, sorted by name. Root only.

    What the index does not have is searched for records, and added to it if the directory can be written to.

    Raises
    ------
    DatasetNotFoundError
        If no file matches a pattern.
    DatasetDamagedError
        If files are not what the index says, or no TFRecords; naming them.
    """
    names = [_matching(directory, pattern) for pattern in patterns]
    chosen = [sorted(set(each).difference(*names[n + 1 :])) for n, each in enumerate(names)]
    for pattern, found in zip(patterns, chosen, strict=True):
        if not found:
            raise DatasetNotFoundError(f"{directory} has no files {pattern!r}: give the pattern of the shards there")
    wanted = [name for found in chosen for name in found]
    known = _read_index(directory / FILE)
    _check_sizes(directory, [known[name] for name in wanted if name in known])
    shards = {name: known.get(name) or _searched(directory / name) for name in wanted}
    if not shards.keys() <= known.keys():
        _write_index(directory / FILE, {**known, **shards})
    return [[shards[name] for name in found] for found in chosen]


def read_classes(directory: Path) -> list[str]:
    """Return the names of the classes, if `folders.convert` has written them. Independent."""
    try:
        return (directory / CLASSES).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []


def offsets_in(path: Path) -> Integers:
    """Return where the records of a file begin. Independent.

    Raises
    ------
    DatasetDamagedError
        If they do not fill the file; says which one does not, and what to do.
    """
    found: list[int] = []
    at = 0
    with path.open("rb") as file:
        nbytes = os.fstat(file.fileno()).st_size
        while at < nbytes:
            head = files.read_at(file.fileno(), _HEAD.size, at)
            end = at + _AROUND + _length(path, len(found), at, head)
            if end > nbytes:
                raise _damaged(path, f"record {len(found)} at byte {at} ends at byte {end}, and the file at {nbytes}")
            found.append(at)
            at = end
    return np.array(found, np.int64)


def _length(path: Path, number: int, at: int, head: bytes) -> int:
    if len(head) < _HEAD.size:
        raise _damaged(path, f"record {number} at byte {at} is cut off")
    length, checksum = _HEAD.unpack(head)
    if checksum != _masked(native.crc32c(head[:8])):
        raise _damaged(path, f"there is no TFRecord at byte {at}, behind {number} records")
    return int(length)


def _masked(crc: int) -> int:
    """Return a checksum as TFRecords have it."""
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def _damaged(path: Path, text: str) -> DatasetDamagedError:
    return DatasetDamagedError(f"{path}: {text}: copy the file again, or make it again")


def _matching(directory: Path, pattern: str) -> list[str]:
    if not directory.is_dir():
        raise DatasetNotFoundError(f"{directory} is not there: give the directory of the shards")
    if not pattern or Path(pattern).name != pattern:
        raise OptionError(f"{pattern!r} – a pattern of file names such as 'train-*', without a directory")
    return [path.name for path in directory.glob(pattern) if path.is_file() and path.name not in {FILE, CLASSES}]


def _searched(path: Path) -> IndexedShard:
    nbytes = path.stat().st_size
    if not nbytes:
        raise _damaged(path, "has no records")
    return IndexedShard(path.name, nbytes, offsets_in(path))


# -- the index -------------------------------------------------------------------------------------


def _check_sizes(directory: Path, shards: Sequence[IndexedShard]) -> None:
    sizes = [(shard, (directory / shard.file).stat().st_size) for shard in shards]
    problems = [
        Problem(str(directory / shard.file), f"has {nbytes} bytes, not {shard.nbytes}")
        for shard, nbytes in sizes
        if nbytes != shard.nbytes
    ]
    if problems:
        raise DatasetDamagedError(
            f"{list_problems(problems, _MAX_NAMED)}: copy these files again; if they were replaced on purpose, remove "
            f"{directory / FILE}"
        )


def _read_index(path: Path) -> dict[str, IndexedShard]:
    """Return what the index has, by file name; nothing if there is none, or it is none of ours: it is made again."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as found:
            if str(found["format"]) != _FORMAT:
                return {}
            names, sizes, counts, offsets = (found[name] for name in ("files", "nbytes", "n_records", "offsets"))
        ends = np.cumsum(counts)
        parts = np.split(offsets.astype(np.int64), ends[:-1])
        if not len(names) == len(sizes) == len(counts) or ends[-1] != len(offsets):
            return {}
        rows = zip(map(str, names), map(int, sizes), parts, strict=True)
        return {name: IndexedShard(name, size, part) for name, size, part in rows}
    except (OSError, ValueError, KeyError, IndexError, EOFError, TypeError, zipfile.BadZipFile):
        return {}


def _write_index(path: Path, shards: Mapping[str, IndexedShard]) -> None:
    """Write the index, whole or not at all; data of others that cannot be written to is searched each time."""
    every = [shards[name] for name in sorted(shards)]
    temporary = path.with_name(f".tmp-{layout.new_nonce()}.{path.name}")
    try:
        with temporary.open("wb") as file:
            np.savez(
                file,
                format=np.array(_FORMAT),
                files=np.array([shard.file for shard in every]),
                nbytes=np.array([shard.nbytes for shard in every], np.int64),
                n_records=np.array([len(shard.offsets) for shard in every], np.int64),
                offsets=np.concatenate([shard.offsets for shard in every]),
            )
        fsync_file(temporary)
        files.rename(temporary, path)
    except OSError:
        files.unlink(temporary)
