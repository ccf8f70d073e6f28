"""Bytes: checksums, block-wise reading and writing, copies, durability, and zero-copy views of tensors. Independent.

Two implementations give the same results and the same errors: ``_native`` (C++, no TensorFlow, no MPI), and ``_pure``
for machines without a compiler, chosen if ``_native`` is not there or ``HPCCKPT_NO_NATIVE=1``.  This module holds what
they share: the documentation, the defaults, and the checks of arguments.

What is called a buffer here is anything contiguous that exports bytes: an array, ``bytes``, a memoryview, or a
:class:`TensorBuffer`.  TypeError refuses what exports none, BufferError what is not contiguous or, as a destination,
read-only.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Literal, Protocol, cast

from hpcckpt.errors import ConfigError
from hpcckpt.native.arena import Arena
from hpcckpt.native.buffers import BufferType, CallingBack, TensorBuffer, open_view
from hpcckpt.native.durable import Path, fdatasync, fsync, fsync_dir

if TYPE_CHECKING:
    from hpcckpt.native.buffers import BytesLike

__all__ = [
    "BLOCK_BYTES",
    "IMPLEMENTATION",
    "Arena",
    "TensorBuffer",
    "copy_pieces",
    "count_nonfinite",
    "crc32c",
    "crc32c_blocks",
    "crc32c_combine",
    "end_unless_parent_has_signal",
    "fdatasync",
    "fsync",
    "fsync_dir",
    "live_views",
    "mark_signal",
    "preallocate",
    "prefault",
    "read_blocks",
    "view",
    "write_blocks",
]

BLOCK_BYTES = 1 << 20
"""Bytes per checksum, unless the caller says otherwise."""


class _Core(Protocol):
    """What ``_native`` and ``_pure`` both are."""

    @property
    def TensorBuffer(self) -> BufferType[TensorBuffer]: ...  # noqa: N802
    def crc32c(self, data: BytesLike, value: int) -> int: ...
    def crc32c_combine(self, first: int, second: int, second_nbytes: int) -> int: ...
    def crc32c_blocks(self, data: BytesLike, block_bytes: int, threads: int) -> list[int]: ...
    def write_blocks(
        self,
        fd: int,
        pieces: Iterable[tuple[BytesLike, int]],
        block_bytes: int,
        threads: int,
        path: str,
        on_piece: Callable[[int], object] | None,
        nice: int,
        is_one_writer: bool,
    ) -> list[list[int]]: ...
    def read_blocks(
        self,
        fd: int,
        pieces: Iterable[tuple[BytesLike, int, Sequence[int] | None]],
        block_bytes: int,
        threads: int,
        path: str,
    ) -> list[tuple[int, int]]: ...
    def preallocate(self, fd: int, nbytes: int, path: str) -> None: ...
    def copy_pieces(self, pairs: Iterable[tuple[BytesLike, BytesLike]], threads: int) -> None: ...
    def count_nonfinite(self, data: BytesLike, dtype: str, threads: int) -> int: ...
    def prefault(self, data: BytesLike, threads: int) -> None: ...
    def mark_signal(self, number: int, state: BytesLike) -> None: ...
    def end_unless_parent_has_signal(
        self, number: int, parent_state: BytesLike, wait_s: float, parent_pid: int
    ) -> None: ...
    def live_views(self) -> int: ...


def _choose() -> tuple[Literal["native", "pure"], _Core]:
    if os.environ.get("HPCCKPT_NO_NATIVE", "0") in ("", "0"):
        try:
            return "native", cast(_Core, importlib.import_module("hpcckpt.native._native"))
        except ModuleNotFoundError:
            pass  # not built: nothing to report
        except ImportError as error:
            # Built for another Python or C++ library: it works without, but the loss of speed should have a reason.
            logging.getLogger(__name__).warning("hpcckpt: the native part does not load (%s); running without", error)
    try:
        return "pure", cast(_Core, importlib.import_module("hpcckpt.native._pure"))
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"{os.path.dirname(__file__)} has no native part for this Python ({sys.executable}), and the package "
            f"{error.name}, which is used without it, is not installed: pip install hpcckpt installs both"
        ) from error


IMPLEMENTATION: Literal["native", "pure"]
IMPLEMENTATION, _core = _choose()


def crc32c(data: BytesLike, value: int = 0) -> int:
    """Compute the CRC32C (Castagnoli) of a buffer.

    Parameters
    ----------
    data
        Buffer.
    value
        CRC of the bytes that came before, to continue.

    Returns
    -------
    int
        The CRC of everything so far.
    """
    return _core.crc32c(data, value)


def crc32c_combine(first: int, second: int, second_nbytes: int) -> int:
    """Compute the CRC32C of two concatenated byte strings from their CRC32Cs.

    Parameters
    ----------
    first, second
        CRCs of the two.
    second_nbytes
        Length of the second.

    Returns
    -------
    int
        CRC of the first followed by the second.
    """
    if second_nbytes < 0:
        raise ValueError(f"second_nbytes: {second_nbytes} is negative")
    return _core.crc32c_combine(first, second, second_nbytes)


def crc32c_blocks(data: BytesLike, block_bytes: int = BLOCK_BYTES, threads: int = 1) -> list[int]:
    """Compute the CRC32C of each block of a buffer.

    Parameters
    ----------
    data
        Buffer.
    block_bytes
        Length of a block; the last one is short.
    threads
        How many threads share the work.

    Returns
    -------
    list of int
        One CRC per block; none for an empty buffer.
    """
    _check(block_bytes, threads)
    return _core.crc32c_blocks(data, block_bytes, threads)


def write_blocks(
    fd: int,
    pieces: Iterable[tuple[BytesLike, int]],
    *,
    block_bytes: int = BLOCK_BYTES,
    threads: int = 1,
    path: Path = "",
    on_piece: Callable[[int], object] | None = None,
    nice: int = 0,
    is_one_writer: bool = False,
) -> list[list[int]]:
    """Write pieces to a file and checksum them in the same pass.

    Nothing is durable before :func:`fsync`.  If writing fails, or a signal handler raises (Ctrl-C, on the main thread),
    an unknown part has been written.  The bytes must not change until the call returns, because checksums are computed
    after the system has copied the bytes.

    Parameters
    ----------
    fd
        File open for writing.
    pieces
        Buffers and the file offsets where they go.
    block_bytes
        Bytes per checksum, counted within each piece; the last block of a piece is short.
    threads
        How many threads share the work, without the GIL.
    path
        Name of the file, for errors.
    on_piece
        Called with the index of each piece once its bytes have been passed to the system, in any order, from any
        thread, one at a time or several at once.  The piece's buffer has been released by then, so that it is freed
        if there is no other reference to it: give `pieces` as an iterator, because a list would have one.
    nice
        Above 0, the threads that write have this nice value (Linux), so that they give way to others, and the caller
        only waits.
    is_one_writer
        For file systems that let only one thread at a time write to a file: one thread writes, and with `nice` 0 a
        second one computes the checksums meanwhile.

    Returns
    -------
    list of list of int
        For each piece, the CRC32C of its blocks; none for an empty piece.

    Raises
    ------
    OSError
        With errno, reason and path, of the first block that could not be written.
    BaseException
        The first one that `on_piece` raised, after all has been written.
    """
    _check(block_bytes, threads)
    if on_piece is None:
        return _core.write_blocks(fd, pieces, block_bytes, threads, os.fsdecode(path), None, nice, is_one_writer)
    with CallingBack(on_piece) as call:
        return _core.write_blocks(fd, pieces, block_bytes, threads, os.fsdecode(path), call, nice, is_one_writer)


def read_blocks(
    fd: int,
    pieces: Iterable[tuple[BytesLike, int, Sequence[int] | None]],
    *,
    block_bytes: int = BLOCK_BYTES,
    threads: int = 1,
    path: Path = "",
) -> list[tuple[int, int]]:
    """Read pieces of a file into memory and verify them in the same pass.

    Parameters
    ----------
    fd
        File open for reading.
    pieces
        Writable buffers, the file offsets where they come from, and the CRC32C of their blocks, or None to read
        without verifying.
    block_bytes
        Bytes per checksum, counted within each piece.
    threads
        How many threads share the work, without the GIL.
    path
        Name of the file, for errors.

    Returns
    -------
    list of tuple of int
        (piece, block) of each block whose bytes do not have the expected CRC; the buffer has these bytes nevertheless.

    Raises
    ------
    OSError
        With errno, reason and path, of the first block that could not be read.
    EOFError
        If the file ends before a piece does; names path, offset, and bytes wanted and got.
    """
    _check(block_bytes, threads)
    return _core.read_blocks(fd, pieces, block_bytes, threads, os.fsdecode(path))


def preallocate(fd: int, nbytes: int, path: Path = "") -> None:
    """Allocate space for the first `nbytes` bytes of a file; extend it if shorter.

    If space is missing, this fails before anything is written.  Where the file system cannot preallocate, nothing
    happens.

    Parameters
    ----------
    fd
        File open for writing.
    nbytes
        Length to allocate; a longer file keeps its length.
    path
        Name of the file, for errors.

    Raises
    ------
    OSError
        With errno (ENOSPC, EDQUOT, EFBIG), reason and path.
    """
    _core.preallocate(fd, nbytes, os.fsdecode(path))


def copy_pieces(pairs: Iterable[tuple[BytesLike, BytesLike]], threads: int = 1) -> None:
    """Copy many buffers at once, bypassing the caches if there is much to copy.

    Parameters
    ----------
    pairs
        Sources and destinations, of equal lengths.
    threads
        How many threads share the work, without the GIL.

    Raises
    ------
    ValueError
        If the lengths of a pair differ, or a destination overlaps any other buffer; nothing was copied.
    """
    _check_threads(threads)
    _core.copy_pieces(pairs, threads)


def count_nonfinite(buffer: BytesLike, dtype_token: str, threads: int = 1) -> int:
    """Count the elements that are NaN or infinite.

    Parameters
    ----------
    buffer
        Buffer, of whole elements.
    dtype_token
        What its bytes are, such as ``bfloat16``; in types that are not floating-point numbers, and in long doubles,
        nothing is counted.
    threads
        How many threads share the work, without the GIL.

    Returns
    -------
    int
        The number of such elements; a complex number counts once.
    """
    _check_threads(threads)
    return _core.count_nonfinite(buffer, dtype_token, threads)


def prefault(buffer: BytesLike, threads: int = 1) -> None:
    """Allocate the memory of all pages of a buffer now; its content stays.

    Parameters
    ----------
    buffer
        Writable buffer that nothing else writes to meanwhile.
    threads
        How many threads share the work, without the GIL.
    """
    _check_threads(threads)
    _core.prefault(buffer, threads)


def mark_signal(number: int, state: BytesLike) -> None:
    """Let a signal set the first byte of `state` at once, before Python's handler runs.

    Python calls its handler only when the main thread returns from a call; children cannot wait for that. ``_pure``
    cannot do it. The first call must follow ``signal.signal`` directly.

    Parameters
    ----------
    number
        The signal, with a handler of Python.
    state
        Two bytes in memory that is shared with forked children; the same for all signals.
    """
    _core.mark_signal(number, state)


def end_unless_parent_has_signal(number: int, parent_state: BytesLike, wait_s: float, parent_pid: int) -> None:
    """Let a signal end this child, or call the handler that is installed, unless it was meant for the whole job.

    It is meant for the child if its parent sent it, or has ended, or does not receive a signal too. Without a handler
    the child ends also while it is blocked in a call. ``_pure`` cannot do that, and changes nothing.

    Parameters
    ----------
    number
        The signal.
    parent_state
        Two bytes in memory that the parent shares: whether it has received a signal, and whether it is ending.
    wait_s
        Seconds to wait for the signal of the parent.
    parent_pid
        The process whose signals are meant for the child, as are those of the process that forked it.
    """
    _core.end_unless_parent_has_signal(number, parent_state, wait_s, parent_pid)


def view(tensor: object) -> TensorBuffer:
    """View the memory of a tensor without copying it.

    Parameters
    ----------
    tensor
        C-contiguous, in host memory: an array of any fixed-size dtype, a DLPack exporter, a DLPack capsule, which is
        consumed, or an exporter of the buffer protocol.

    Returns
    -------
    TensorBuffer
        Keeps the memory alive until it is released or freed.

    Raises
    ------
    BufferError
        If the tensor is not C-contiguous, not in host memory, not in this machine's byte order, or its exporter
        refuses (a torch tensor that requires a gradient: use ``detach()``).
    TypeError
        If it is not a tensor, or its dtype is not one of fixed-size plain values.
    ValueError
        If it is a capsule that was consumed before.
    """
    return open_view(tensor, _core.TensorBuffer)


def live_views() -> int:
    """Return how many references keep tensor memory alive.

    They are the views that are not yet released, and the buffers that were exported from them.
    """
    return _core.live_views()


def _check(block_bytes: int, threads: int) -> None:
    if block_bytes < 1:
        raise ValueError(f"block_bytes: {block_bytes} is not a positive number of bytes")
    _check_threads(threads)


def _check_threads(threads: int) -> None:
    if threads < 1:
        raise ValueError(f"threads: {threads} is not a positive number of threads")
