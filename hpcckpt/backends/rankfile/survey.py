"""Which save the data files of a directory belong to, as they say themselves, without a manifest. Independent.

A rank's own file names, in ``frozen``, the files of older saves that its save goes with: these carry the older save's
identity, so nothing else shows that they belong to this one.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, TypeGuard

from hpcckpt import native
from hpcckpt.backends.rankfile import format as codec
from hpcckpt.backends.rankfile.backend import file_path
from hpcckpt.core import files
from hpcckpt.core.plan import FileRecord
from hpcckpt.errors import CorruptError, HpcckptError, from_read_error
from hpcckpt.format import layout
from hpcckpt.format.manifest import FORMAT_VERSION

_OWN = re.compile(r"rank-[0-9]{5,}\.safetensors")
_FROZEN = re.compile(r"rank-[0-9]{5,}\.frozen-[0-9]+\.safetensors")
_IDENTITY = re.compile(r"[0-9a-f]{8,64}")
_MAX_NAMED = 100


@dataclass(frozen=True, slots=True)
class DataFile:
    """A data file, and the document in its header."""

    record: FileRecord
    document: Mapping[str, Any]

    @property
    def save_id(self) -> str:
        """The save that wrote it."""
        return str(self.document["save_id"])

    @property
    def rank(self) -> int:
        """The rank that wrote it."""
        return int(self.document["rank"])


@dataclass(slots=True)
class Survey:
    """All data files of a directory.

    Attributes
    ----------
    own : dict
        The ranks' own files, by save and rank.
    frozen : dict
        Frozen files, by path.
    problems : dict
        What is wrong with the others, by path.
    """

    own: dict[str, dict[int, DataFile]] = field(default_factory=lambda: defaultdict(dict))
    frozen: dict[str, DataFile] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FileSet:
    """The data files of one save.

    Attributes
    ----------
    files : tuple of DataFile
        The ranks' own, in rank order.
    frozen : tuple of FileRecord
        Those that they go with.
    problems : tuple of str
        What is missing, damaged or foreign; empty if the set is complete.
    left_alone : tuple of str
        Data files that are not of this save.
    """

    files: tuple[DataFile, ...] = ()
    frozen: tuple[FileRecord, ...] = ()
    problems: tuple[str, ...] = ()
    left_alone: tuple[str, ...] = ()

    @property
    def records(self) -> tuple[FileRecord, ...]:
        """All files, sorted by path."""
        return tuple(sorted([*(file.record for file in self.files), *self.frozen], key=lambda record: record.path))


# -- looking ---------------------------------------------------------------------------------------


def survey(path: Path) -> Survey:
    """Read the headers of all data files of a step directory. Independent.

    Raises
    ------
    CorruptError
        If there is no directory of data files.
    """
    data = path / layout.DATA
    if path.is_symlink() or data.is_symlink():
        raise CorruptError(f"{path}: a symbolic link, which run directories never hold; not followed")
    try:
        names = sorted(os.listdir(data))
    except (FileNotFoundError, NotADirectoryError):
        raise CorruptError(f"{data} is missing: there is nothing to rebuild a manifest from") from None
    except OSError as error:
        raise from_read_error(error, "list data files") from error
    found = Survey()
    for name in names:
        if _OWN.fullmatch(name) or _FROZEN.fullmatch(name):
            _look(found, path, f"{layout.DATA}/{name}")
    return found


def _look(found: Survey, path: Path, name: str) -> None:
    try:
        file = read_file(path, name)
    except (HpcckptError, OSError) as error:
        found.problems[name] = problem_text(error)
        return
    if _FROZEN.fullmatch(os.path.basename(name)):
        found.frozen[name] = file
    elif name != file_path(file.rank):
        found.problems[name] = f"{name} is the file of rank {file.rank}"
    else:
        found.own[file.save_id][file.rank] = file


def problem_text(error: Exception) -> str:
    """Return what an error says, without the advice to use another step."""
    if isinstance(error, OSError) and not isinstance(error, HpcckptError):
        error = from_read_error(error, "read")
    return str(error).removesuffix("; use an older step")


def read_file(path: Path, name: str) -> DataFile:
    """Read the header of one data file. Independent.

    Raises
    ------
    CorruptError
        If it is damaged, or has impossible values.
    """
    fd = files.open_regular(str(path / name))
    try:
        nbytes = os.fstat(fd).st_size
        length = codec.header_length(files.read_at(fd, 8, 0), nbytes, name)
        crc, document = codec.read_document(files.read_at(fd, length, 8), name, native.crc32c)
    finally:
        os.close(fd)
    problem = _document_problem(document)
    if problem:
        raise CorruptError(f"{name}: {problem}")
    return DataFile(FileRecord(name, nbytes, crc), document)


def _is_count(value: Any, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def is_identity(value: Any) -> TypeGuard[str]:
    """Return True if this may be the identity of a save."""
    return isinstance(value, str) and _IDENTITY.fullmatch(value) is not None


def _document_problem(document: Mapping[str, Any]) -> str:
    """Return what is invalid in a header, except the entries, which are checked when they are read. Pure."""
    get = document.get
    if not _is_count(get("format"), 1, FORMAT_VERSION):
        return f"format {get('format')!r} is not one that this version reads; upgrade hpcckpt"
    rules = {
        "save_id": is_identity(get("save_id")),
        "step": _is_count(get("step"), 0, layout.MAX_STEP),
        "ranks": _is_count(get("ranks"), 1, 1 << 31),
        "rank": _is_count(get("rank"), 0, 1 << 31),
        "block_bytes": _is_count(get("block_bytes"), 1, 1 << 30),
        "frozen": isinstance(get("frozen", []), list) and all(_is_reference(each) for each in get("frozen", [])),
    }
    wrong = [name for name, is_met in rules.items() if not is_met]
    return f"{', '.join(wrong)} cannot be what the header says" if wrong else ""


def _is_reference(value: Any) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("path"), str):
        return False
    folder, _, name = value["path"].rpartition("/")
    is_file = folder == layout.DATA and _FROZEN.fullmatch(name) is not None
    is_sealed = re.fullmatch("[0-9a-f]{8}", str(value.get("header_crc32c"))) is not None
    return is_file and is_sealed and _is_count(value.get("bytes"), 0, 1 << 62) and is_identity(value.get("save_id"))


# -- choosing --------------------------------------------------------------------------------------


def choose(found: Survey, step: int | None) -> FileSet:
    """Return the files of the one save that has all its files; else the most complete set, with problems. Pure.

    Two saves cannot both be whole in one directory: each needs a file of rank 0, and there is one name for it.

    Parameters
    ----------
    found : Survey
        What is there.
    step : int, optional
        The step that it has to be.
    """
    sets = [_set_of(found, files, step) for files in found.own.values()]
    if not sets:
        return FileSet(
            problems=(
                *found.problems.values(),
                "no data file of a rank can be read; a lost manifest is rebuilt from rankfile's files only",
            )
        )
    best = min(sets, key=lambda each: (len(each.problems) > 0, -len(each.files)))
    every = {file.record.path for files in found.own.values() for file in files.values()}
    others = {*every, *found.frozen, *found.problems} - {record.path for record in best.records}
    return replace(best, left_alone=tuple(sorted(others)))


def _set_of(found: Survey, files: Mapping[int, DataFile], step: int | None) -> FileSet:
    """Return what there is of one save, and what is missing of it."""
    ordered = tuple(files[rank] for rank in sorted(files))
    problems = [*_rank_problems(found, files, ordered[0]), *_difference_problems(ordered, step)]
    frozen = []
    for file in ordered:
        for listed in file.document.get("frozen", []):
            record, problem = _frozen_record(found, listed, file.save_id)
            frozen += [record] if record else []
            problems += [problem] if problem else []
    return FileSet(ordered, tuple(frozen), tuple(problems))


def _rank_problems(found: Survey, files: Mapping[int, DataFile], first: DataFile) -> list[str]:
    n_ranks = int(first.document["ranks"])
    missing = islice((rank for rank in range(n_ranks) if rank not in files), _MAX_NAMED)  # a header may say 2**31
    problems = [_rank_problem(found, rank, first.save_id) for rank in missing]
    return problems + [
        f"{file_path(rank)} is of a rank beyond the {n_ranks} of its save" for rank in files if rank >= n_ranks
    ]


def _rank_problem(found: Survey, rank: int, save_id: str) -> str:
    path = file_path(rank)
    is_foreign = any(rank in others for others in found.own.values())
    return found.problems.get(path) or f"{path} is {f'of another save than {save_id}' if is_foreign else 'missing'}"


def _difference_problems(files: tuple[DataFile, ...], step: int | None) -> list[str]:
    problems = [
        f"the files of save {files[0].save_id} differ in their {what}"
        for key, what in (("ranks", "number of ranks"), ("step", "step"), ("block_bytes", "block size"))
        if len({file.document[key] for file in files}) > 1
    ]
    if step is not None and files[0].document["step"] != step:
        problems.append(f"the files are those of step {files[0].document['step']}, not of step {step}")
    return problems


def _frozen_record(found: Survey, listed: Mapping[str, Any], save_id: str) -> tuple[FileRecord | None, str]:
    """Return the record of a file that a rank's header names, or what is wrong with it."""
    path = str(listed["path"])
    file = found.frozen.get(path)
    if file is None:
        return None, found.problems.get(path) or f"{path} is missing"
    said = (listed["save_id"], listed["bytes"], int(listed["header_crc32c"], 16))
    if said != (file.save_id, file.record.nbytes, file.record.header_crc):
        return None, f"{path} is not the file that save {save_id} goes with (stale or swapped)"
    return replace(file.record, save_id=file.save_id), ""
