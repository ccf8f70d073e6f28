"""The functions of ``_native`` in Python: same results and same errors, for machines without a compiler."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar, cast

import crc32c as _crc32c
import numpy as np

from hpcckpt.native._pure_buffer import TensorBuffer, live_views
from hpcckpt.native.durable import naming

if TYPE_CHECKING:
    from hpcckpt.native.buffers import BytesLike

__all__ = [
    "TensorBuffer",
    "crc32c",
    "crc32c_blocks",
    "crc32c_combine",
    "live_views",
    "preallocate",
    "read_blocks",
    "write_blocks",
]

T = TypeVar("T")
_POLYNOMIAL = 0x82F63B78
_NOT_SUPPORTED = (errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS)


def crc32c(data: BytesLike, value: int) -> int:
    return _crc32c.crc32c(_bytes_of(data), value)


def crc32c_combine(first: int, second: int, second_nbytes: int) -> int:
    return _multiply(_power_of_x(8 * second_nbytes), first) ^ second


def crc32c_blocks(data: BytesLike, block_bytes: int, threads: int) -> list[int]:
    blocks = list(_blocks_of([_Piece(_bytes_of(data), 0)], block_bytes))
    return [crc for _, crc in _run(lambda block: _crc32c.crc32c(block.data), blocks, threads)]


def write_blocks(
    fd: int, pieces: Iterable[tuple[BytesLike, int]], block_bytes: int, threads: int, path: str
) -> list[list[int]]:
    todo = [_Piece(_bytes_of(data), _offset_of(offset)) for data, offset in pieces]

    def write(block: _Block) -> int:
        crc = _crc32c.crc32c(block.data)
        _pwrite_all(fd, block.data, block.offset)
        return crc

    crcs: list[list[int]] = [[] for _ in todo]
    with naming(path):
        for block, crc in _run(write, list(_blocks_of(todo, block_bytes)), threads):
            crcs[block.piece].append(crc)
    return crcs


def read_blocks(
    fd: int,
    pieces: Iterable[tuple[BytesLike, int, Sequence[int] | None]],
    block_bytes: int,
    threads: int,
    path: str,
) -> list[tuple[int, int]]:
    todo = [
        _Piece(_bytes_of(data, is_target=True), _offset_of(offset), _crcs_of(crcs)) for data, offset, crcs in pieces
    ]
    for piece in todo:
        piece.check_crcs(block_bytes)

    def read(block: _Block) -> bool:
        got = _pread_all(fd, block.data, block.offset)
        if got < len(block.data):
            raise EOFError(todo[block.piece].ends_early(path, block.offset + got))
        return block.crc is None or _crc32c.crc32c(block.data) == block.crc

    with naming(path):
        done = _run(read, list(_blocks_of(todo, block_bytes)), threads)
    return [(block.piece, block.index) for block, is_good in done if not is_good]


def preallocate(fd: int, nbytes: int, path: str) -> None:
    if nbytes < 0:
        raise ValueError("cannot preallocate a negative number of bytes")
    if nbytes == 0:
        return
    try:
        with naming(path):
            os.posix_fallocate(fd, 0, nbytes)
    except OSError as error:
        if error.errno not in _NOT_SUPPORTED:
            raise


@dataclass(frozen=True, slots=True)
class _Piece:
    data: memoryview
    offset: int
    crcs: list[int] | None = None

    def check_crcs(self, block_bytes: int) -> None:
        n_blocks = -(-len(self.data) // block_bytes)
        if self.crcs is not None and len(self.crcs) != n_blocks:
            raise ValueError(f"{len(self.crcs)} expected CRCs for {n_blocks} blocks")

    def ends_early(self, path: str, end: int) -> str:
        wanted = f"wanted {len(self.data)} bytes at offset {self.offset}"
        return f"{path or 'file'}: ends early: {wanted}, got {end - self.offset}"


@dataclass(frozen=True, slots=True)
class _Block:
    piece: int
    index: int
    data: memoryview
    offset: int
    crc: int | None


def _blocks_of(pieces: list[_Piece], block_bytes: int) -> Iterator[_Block]:
    for number, piece in enumerate(pieces):
        for index, start in enumerate(range(0, len(piece.data), block_bytes)):
            crc = None if piece.crcs is None else piece.crcs[index]
            yield _Block(number, index, piece.data[start : start + block_bytes], piece.offset + start, crc)


def _run(work: Callable[[_Block], T], blocks: list[_Block], threads: int) -> list[tuple[_Block, T]]:
    """Do `work` on each block; if some fail, raise the error of the first of them in the order of the blocks."""
    if threads == 1 or len(blocks) < 2:
        return [(block, work(block)) for block in blocks]
    failed = threading.Event()

    def work_unless_failed(block: _Block) -> T | None:
        if failed.is_set():
            return None
        try:
            return work(block)
        except BaseException:
            failed.set()
            raise

    with ThreadPoolExecutor(min(threads, len(blocks)), "hpcckpt-blocks") as pool:
        futures = [pool.submit(work_unless_failed, block) for block in blocks]
    return [(block, cast(T, future.result())) for block, future in zip(blocks, futures, strict=True)]


def _bytes_of(data: BytesLike, *, is_target: bool = False) -> memoryview:
    """View the memory of `data` as bytes: the door for all memory that comes in."""
    name = type(data).__name__
    try:
        # Not memoryview(data).cast("B"), which refuses complex numbers, datetimes and bfloat16.
        source = (
            data.as_array() if isinstance(data, TensorBuffer) else np.frombuffer(cast("memoryview", data), np.uint8)
        )
    except TypeError:
        raise TypeError(f"expected a bytes-like object, got {name}") from None
    except (ValueError, BufferError) as error:
        raise BufferError(f"{name} is not plain contiguous bytes: {error}") from error
    if is_target and not source.flags.writeable:
        raise BufferError(f"{name} is read-only: a destination must be writable")
    return memoryview(cast("memoryview", source))


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
    """Multiply two polynomials modulo that of CRC32C; bit i stands for x^(31-i)."""
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
