"""The functions of ``_native`` in Python: same results and same errors, for machines without a compiler."""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import crc32c as _crc32c

from hpcckpt.core.threads import map_in_threads
from hpcckpt.native._pure_buffer import TensorBuffer, live_views
from hpcckpt.native._pure_memory import bytes_of, copy_pieces, count_nonfinite, prefault
from hpcckpt.native.durable import naming

if TYPE_CHECKING:
    from hpcckpt.native.buffers import BytesLike

__all__ = [
    "TensorBuffer",
    "copy_pieces",
    "count_nonfinite",
    "crc32c",
    "crc32c_blocks",
    "crc32c_combine",
    "end_unless_parent_has_signal",
    "live_views",
    "mark_signal",
    "preallocate",
    "prefault",
    "read_blocks",
    "write_blocks",
]

_POLYNOMIAL = 0x82F63B78
_NOT_SUPPORTED = (errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EINTR)
_MAX_TRIES = 10
_PART_BYTES = 16 << 20


def crc32c(data: BytesLike, value: int) -> int:
    whole = bytes_of(data)
    for start in range(0, len(whole), _PART_BYTES):  # signals are handled between parts
        value = _crc32c.crc32c(whole[start : start + _PART_BYTES], value)
    return value


def crc32c_combine(first: int, second: int, second_nbytes: int) -> int:
    return _multiply(_power_of_x(8 * second_nbytes), first) ^ second


def mark_signal(number: int, state: BytesLike) -> None:
    """Do nothing: without native code the state is set when Python's handler runs."""


def end_unless_parent_has_signal(number: int, parent_state: BytesLike, wait_s: float, parent_pid: int) -> None:
    """Leave the handler as it is: without native code there is none that runs during a blocked call."""


def crc32c_blocks(data: BytesLike, block_bytes: int, threads: int) -> list[int]:
    piece = _Piece(bytes_of(data), 0)
    return map_in_threads(lambda block: _crc32c.crc32c(piece.part(block)), _blocks_of([piece], block_bytes), threads)


def write_blocks(
    fd: int,
    pieces: Iterable[tuple[BytesLike, int]],
    block_bytes: int,
    threads: int,
    path: str,
    on_piece: Callable[[int], object] | None,
    nice: int,  # noqa: ARG001 - Python's threads share the GIL, and none of them may give way while it has it
    is_one_writer: bool,
) -> list[list[int]]:
    todo = [_Piece(bytes_of(data), _offset_of(offset)) for data, offset in pieces]
    countdown = None if on_piece is None else _Countdown(todo, block_bytes, on_piece)

    def write(block: _Block) -> int:
        data = todo[block.piece].part(block)
        crc = _crc32c.crc32c(data)
        _pwrite_all(fd, data, block.offset)
        if countdown is not None:
            del data
            countdown.block_is_done(block)
        return crc

    crcs: list[list[int]] = [[] for _ in todo]
    blocks = list(_blocks_of(todo, block_bytes))
    with naming(path):
        for block, crc in zip(blocks, map_in_threads(write, blocks, 1 if is_one_writer else threads), strict=True):
            crcs[block.piece].append(crc)
    return crcs


def read_blocks(
    fd: int,
    pieces: Iterable[tuple[BytesLike, int, Sequence[int] | None]],
    block_bytes: int,
    threads: int,
    path: str,
) -> list[tuple[int, int]]:
    todo = [_Piece(bytes_of(data, is_target=True), _offset_of(offset), _crcs_of(crcs)) for data, offset, crcs in pieces]
    for piece in todo:
        piece.check_crcs(block_bytes)

    def read(block: _Block) -> bool:
        data = todo[block.piece].part(block)
        got = _pread_all(fd, data, block.offset)
        if got < len(data):
            raise EOFError(todo[block.piece].ends_early(path, block.offset + got))
        return block.crc is None or _crc32c.crc32c(data) == block.crc

    blocks = list(_blocks_of(todo, block_bytes))
    with naming(path):
        is_good = map_in_threads(read, blocks, threads)
    return [(block.piece, block.index) for block, good in zip(blocks, is_good, strict=True) if not good]


def preallocate(fd: int, nbytes: int, path: str) -> None:
    if nbytes < 0:
        raise ValueError("cannot preallocate a negative number of bytes")
    fallocate = _fallocate()
    if nbytes == 0 or fallocate is None:
        return
    code = errno.EINTR
    for _ in range(_MAX_TRIES):  # a signal makes some file systems begin again, and others may come
        if code == errno.EINTR:
            code = 0 if fallocate(fd, 0, 0, nbytes) == 0 else ctypes.get_errno()
    if code and code not in _NOT_SUPPORTED:
        with naming(path):
            raise OSError(code, os.strerror(code))


@functools.cache
def _fallocate() -> Callable[[int, int, int, int], int] | None:
    """Return Linux' fallocate, if this is Linux.

    Not `os.posix_fallocate`: where the file system cannot, glibc looks for a zero in each block and writes it again,
    over what another rank may have written there meanwhile.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    function = getattr(libc, "fallocate64", None) or getattr(libc, "fallocate", None)
    if function is not None:
        function.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    return function


@dataclass(slots=True)
class _Piece:
    data: memoryview
    offset: int
    crcs: list[int] | None = None

    def part(self, block: _Block) -> memoryview:
        return self.data[block.start : block.stop]

    def check_crcs(self, block_bytes: int) -> None:
        n_blocks = -(-len(self.data) // block_bytes)
        if self.crcs is not None and len(self.crcs) != n_blocks:
            raise ValueError(f"{len(self.crcs)} expected CRCs for {n_blocks} blocks")

    def ends_early(self, path: str, end: int) -> str:
        wanted = f"wanted {len(self.data)} bytes at offset {self.offset}"
        return f"{path or 'file'}: ends early: {wanted}, got {end - self.offset}"


@dataclass(frozen=True, slots=True)
class _Block:
    """A block without its memory, so that a piece can be released before the others."""

    piece: int
    index: int
    start: int
    stop: int
    offset: int
    crc: int | None


def _blocks_of(pieces: list[_Piece], block_bytes: int) -> Iterator[_Block]:
    for number, piece in enumerate(pieces):
        nbytes = len(piece.data)
        for index, start in enumerate(range(0, nbytes, block_bytes)):
            crc = None if piece.crcs is None else piece.crcs[index]
            yield _Block(number, index, start, min(start + block_bytes, nbytes), piece.offset + start, crc)


class _Countdown:
    """Releases each piece when the last of its blocks is done, and reports it."""

    def __init__(self, pieces: list[_Piece], block_bytes: int, on_piece: Callable[[int], object]) -> None:
        self._pieces = pieces
        self._on_piece = on_piece
        self._guard = threading.Lock()
        self._left = [-(-len(piece.data) // block_bytes) for piece in pieces]
        for piece, n_blocks in enumerate(self._left):
            if n_blocks == 0:
                self._tell(piece)

    def block_is_done(self, block: _Block) -> None:
        with self._guard:
            self._left[block.piece] -= 1
            is_last = self._left[block.piece] == 0
        if is_last:
            self._tell(block.piece)

    def _tell(self, piece: int) -> None:
        self._pieces[piece].data = memoryview(b"")
        self._on_piece(piece)


def _offset_of(offset: int) -> int:
    if offset < 0:
        raise ValueError(f"negative file offset {offset}")
    return offset


def _crcs_of(crcs: Sequence[int] | None) -> list[int] | None:
    if crcs is None:
        return None
    numbers = [int(crc) for crc in crcs]
    if not all(0 <= number < 1 << 32 for number in numbers):
        raise ValueError("expected CRCs must be integers of 32 bits")
    return numbers


def _pwrite_all(fd: int, data: memoryview, offset: int) -> None:
    done = 0
    while done < len(data):
        written = os.pwrite(fd, data[done:], offset + done)
        if written == 0:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        done += written


def _pread_all(fd: int, data: memoryview, offset: int) -> int:
    """Fill `data`; return how many bytes there were, which are fewer where the file ends."""
    done = 0
    while done < len(data):
        got = os.preadv(fd, [data[done:]], offset + done)
        if got == 0:
            break
        done += got
    return done


def _multiply(a: int, b: int) -> int:
    """Multiply two polynomials modulo that of CRC32C; bit i is the coefficient of x^(31-i)."""
    product = 0
    for position in range(31, -1, -1):
        if a >> position & 1:
            product ^= b
        b = b >> 1 ^ (_POLYNOMIAL if b & 1 else 0)
    return product


def _power_of_x(n: int) -> int:
    """Return x^n modulo the polynomial of CRC32C, by repeated squaring."""
    result, square = 1 << 31, 1 << 30
    while n:
        if n & 1:
            result = _multiply(result, square)
        square = _multiply(square, square)
        n >>= 1
    return result
