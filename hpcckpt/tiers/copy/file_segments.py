"""Pieces of data files, copied by threads at a pace, made durable."""

from __future__ import annotations

import os
import stat
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from hpcckpt import native
from hpcckpt.core import failpoints
from hpcckpt.core.plan import FileRecord
from hpcckpt.core.results import Progress
from hpcckpt.core.system import FileSystem, OperatingSystem
from hpcckpt.core.threads import map_in_threads
from hpcckpt.errors import CorruptError, HpcckptError, StorageError, UnreadableError, from_read_error
from hpcckpt.format import layout
from hpcckpt.native.posix_files import REAL

PIECE_BYTES = 8 << 20

T = TypeVar("T")
Buffer = npt.NDArray[np.uint8]


class Piece(NamedTuple):
    """A part of a data file, and the size of the whole file."""

    path: str
    offset: int
    nbytes: int
    file_nbytes: int


LOOK_S = 0.05
"""The longest sleep of a thread that keeps to a pace; then it checks whether the limit was lifted."""


class Pace:
    """How fast threads may write, in bytes per second together; ``None`` is no limit."""

    def __init__(self, bytes_per_s: float | None = None, system: OperatingSystem = REAL) -> None:
        self._rate, self._clock, self._executor = bytes_per_s, system.clock, system.executor
        self._free_at = 0.0
        self._guard = self._executor.lock()
        self._is_lifted = False

    @property
    def is_limited(self) -> bool:
        """Whether there is one."""
        return self._rate is not None

    def spend(self, nbytes: int) -> None:
        """Wait until this number of further bytes may have been written."""
        if self._rate is None or self._is_lifted:
            return
        with self._guard:
            until = self._free_at = max(self._free_at, self._clock.monotonic()) + nbytes / self._rate
        while (wait_s := self._wait_s(until)) > 0:
            self._clock.sleep(min(wait_s, LOOK_S))

    def _wait_s(self, until: float) -> float:
        is_over = self._is_lifted or self._executor.is_ending()
        return 0.0 if is_over else until - self._clock.monotonic()

    def lift(self) -> None:
        """Have no limit from now on."""
        self._is_lifted = True
        self._free_at = 0.0

    def limit(self) -> None:
        """Keep to the pace again."""
        self._is_lifted = False


@dataclass(frozen=True, slots=True)
class Rules:
    """How a copy is made.

    Attributes
    ----------
    jobs : int
        Threads of each rank that copy.
    pace : Pace
        How fast this rank may write.
    is_replacing : bool
        Replace another save of this step number, atomically; verify the same one, and write it again if it is damaged.
    nice : int
        How far the threads that write give way to others.
    system : OperatingSystem
        Where both directories are.
    """

    jobs: int = 2
    pace: Pace = field(default_factory=Pace)
    is_replacing: bool = False
    nice: int = 0
    system: OperatingSystem = REAL


def pieces_of(files: Iterable[FileRecord], piece_bytes: int = PIECE_BYTES) -> list[Piece]:
    """Return the pieces that make up files; an empty file is one piece, for it has to be made too. Pure."""
    return [
        Piece(file.path, offset, min(piece_bytes, file.nbytes - offset), file.nbytes)
        for file in files
        for offset in range(0, max(file.nbytes, 1), piece_bytes)
    ]


def share(items: Sequence[T], rank: int, size: int, nbytes: Callable[[T], int]) -> list[T]:
    """Return the items of a rank: those whose middle lies in its equal part of all bytes. Pure."""
    total = sum(nbytes(item) + 1 for item in items)
    mine, position = [], 0
    for item in items:
        weight = nbytes(item) + 1  # what is empty has to be copied too
        if (2 * position + weight) * size // (2 * total) == rank:
            mine.append(item)
        position += weight
    return mine


def copy_pieces(
    source: Path,
    target: Path,
    pieces: Sequence[Piece],
    rules: Rules,
    is_resumed: bool,
    progress: Progress | None = None,
) -> int:
    """Copy pieces of files from one step directory to another; return the bytes written. Independent."""
    if not pieces:
        return 0
    n_threads = min(rules.jobs, len(pieces))
    nbytes = min(PIECE_BYTES, max(piece.nbytes for piece in pieces))
    spare = deque([np.empty(nbytes, np.uint8) for _ in range(2)] for _ in range(n_threads))

    def copy(piece: Piece) -> int:
        buffers = spare.pop()
        try:
            n_written = _copy_piece(source, target, piece, buffers if is_resumed else buffers[:1], rules)
        finally:
            spare.append(buffers)
        failpoints.reached("copy-piece", 0)
        if progress:
            progress(piece.nbytes)
        return n_written

    return sum(map_in_threads(copy, pieces, n_threads))


def _copy_piece(source: Path, target: Path, piece: Piece, buffers: Sequence[Buffer], rules: Rules) -> int:
    """Copy a piece, unless it is there (then a second buffer is at hand to compare it in). Independent."""
    files, data = rules.system.files, buffers[0][: piece.nbytes]
    _read_piece(source, piece, data, files)
    where = str(target / piece.path)
    fd = _open_target(where, piece, files)
    try:
        if len(buffers) > 1 and _has(fd, piece, data, buffers[1][: piece.nbytes], files):
            return 0
        rules.pace.spend(piece.nbytes)
        files.write_blocks(fd, [(data, piece.offset)], path=where, nice=rules.nice)
        if rules.pace.is_limited:
            files.fdatasync(fd, where)  # or the system would keep it all for one burst at the end
    finally:
        files.close(fd)
    return piece.nbytes


def _read_piece(source: Path, piece: Piece, into: Buffer, files: FileSystem) -> None:
    try:
        _read_file(str(source / piece.path), piece, into, files)
    except HpcckptError:
        raise
    except OSError as error:
        raise UnreadableError(str(from_read_error(error, "copy"))) from error


def _read_file(where: str, piece: Piece, into: Buffer, files: FileSystem) -> None:
    fd = files.open_regular(where)
    try:
        if files.fstat(fd).st_size != piece.file_nbytes:
            raise CorruptError(f"{where} changed its size while it was copied; use another step")
        files.read_blocks(fd, [(into, piece.offset, None)], path=where)
    except EOFError as error:
        raise CorruptError(f"{where} was cut short while it was copied ({error}); use another step") from error
    finally:
        files.close(fd)


def _open_target(where: str, piece: Piece, files: FileSystem) -> int:
    """Open a file of the copy to read and write, making it if need be: an ordinary one without another name."""
    fd = files.open(where, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        found = files.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
            raise StorageError(f"{where} is not an ordinary file with one name: remove its directory, and copy again")
        if found.st_size > piece.file_nbytes:
            files.truncate(fd, piece.file_nbytes)
    except BaseException:
        files.close(fd)
        raise
    return fd


def _has(fd: int, piece: Piece, data: Buffer, scratch: Buffer, files: FileSystem) -> bool:
    """Return True if a file holds these bytes at their offset already."""
    if files.fstat(fd).st_size < piece.offset + piece.nbytes:
        return False
    return not files.read_blocks(fd, [(scratch, piece.offset, native.crc32c_blocks(data))])


def sync_files(target: Path, paths: Iterable[str], files: FileSystem) -> None:
    """Make files of a step durable, and have what reads them next read storage. Independent."""
    for path in sorted(paths):
        where = str(target / path)
        fd = files.open_regular(where)
        try:
            files.fsync(fd, where)
            files.uncache(fd)
        finally:
            files.close(fd)
    files.fsync_dir(target / layout.DATA)
    failpoints.reached("copy-synced", 0)
