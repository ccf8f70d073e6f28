"""Contents of a ``.npz`` archive. Arrays of Python objects, which are pickled, are refused."""

from __future__ import annotations

import math
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np

from hpcckpt.core.results import Progress
from hpcckpt.errors import CorruptError, ForeignFormatError
from hpcckpt.format.note import decode
from hpcckpt.restoring.reader import Array
from hpcckpt.tools.convert.contents import Contents, refuse_claim, with_note


def read_npz(path: Path, progress: Progress | None = None) -> Contents:
    """Return the arrays of an archive, read into memory. Independent.

    Raises
    ------
    ForeignFormatError
        If it holds something else than plain arrays; names the first.
    CorruptError
        If it is damaged.
    """
    tensors: dict[str, Array] = {}
    try:
        with zipfile.ZipFile(path) as archive:
            note = decode(archive.comment) if archive.comment else None
            for member in archive.infolist():
                tensors[member.filename.removesuffix(".npy")] = _array(archive, member)
                if progress:
                    progress(member.file_size)
    except (zipfile.BadZipFile, EOFError, zlib.error) as error:
        raise CorruptError(f"{path} is damaged: {error}") from error
    except (NotImplementedError, RuntimeError) as error:  # what zip may do and zipfile does not: encryption, and more
        raise ForeignFormatError(f"{path}: {error}") from error
    return with_note(Contents(tensors), note)


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Array:
    where = f"{archive.filename}: {member.filename}"
    with archive.open(member) as file:
        try:
            shape, is_fortran, dtype = _header(file)
        except ValueError as error:
            raise ForeignFormatError(f"{where} is no array: {error}") from error
        if dtype.hasobject:
            raise ForeignFormatError(
                f"{where} is refused: it holds pickled Python objects, and unpickling may run code; save plain arrays"
            )
        nbytes = math.prod(shape) * dtype.itemsize
        if nbytes > member.file_size:  # before anything is allocated
            raise CorruptError(f"{where} is cut short")
        refuse_claim(where, member.file_size, member.compress_size)
        data = bytearray(file.read())  # to the end, where zip compares its checksum
    if nbytes > len(data):
        raise CorruptError(f"{where} is cut short")
    try:
        found: Array = np.frombuffer(data, np.uint8, nbytes).view(dtype) if nbytes else np.empty(0, dtype)
        return found.reshape(shape, order="F" if is_fortran else "C")
    except (TypeError, ValueError) as error:
        raise CorruptError(f"{where} is damaged: {error}") from error


def _header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version: tuple[int, int] = np.lib.format.read_magic(file)  # type: ignore[no-untyped-call]
    if version not in _READERS:
        raise ValueError(f"it is of version {version}, and 1 and 2 are known")
    shape, is_fortran, dtype = _READERS[version](file)
    return shape, is_fortran, dtype


_READERS: dict[tuple[int, int], Callable[..., Any]] = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
