"""Memory to memory in Python: copies, values that are not finite, and the door for buffers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from hpcckpt.native._pure_buffer import TensorBuffer

if TYPE_CHECKING:
    import numpy.typing as npt

    from hpcckpt.native.buffers import BytesLike

    Bytes = npt.NDArray[np.uint8]

_PATTERNS = {
    "float16": ("<u2", 0x7C00, 0x7C00), "bfloat16": ("<u2", 0x7F80, 0x7F80),
    "float32": ("<u4", 0x7F800000, 0x7F800000), "complex64": ("<u4", 0x7F800000, 0x7F800000),
    "float64": ("<u8", 0x7FF << 52, 0x7FF << 52), "complex128": ("<u8", 0x7FF << 52, 0x7FF << 52),
    "float8_e3m4": ("u1", 0x70, 0x70), "float8_e4m3": ("u1", 0x78, 0x78),
    "float8_e4m3fn": ("u1", 0x7F, 0x7F), "float8_e5m2": ("u1", 0x7C, 0x7C),
    "float8_e4m3b11": ("u1", 0xFF, 0x80), "float8_e4m3b11fnuz": ("u1", 0xFF, 0x80),
    "float8_e4m3fnuz": ("u1", 0xFF, 0x80), "float8_e5m2fnuz": ("u1", 0xFF, 0x80),
    "float8_e8m0fnu": ("u1", 0xFF, 0xFF),
}  # fmt: skip
"""Dtype token to (words, mask, value): a value is not finite if ``word & mask == value``."""
_PAGE_BYTES = 4096
_PART_BYTES = 1 << 20


def bytes_of(data: BytesLike, *, is_target: bool = False) -> memoryview:
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


def copy_pieces(pairs: Iterable[tuple[BytesLike, BytesLike]], threads: int) -> None:  # noqa: ARG001 - NumPy has one
    copies = [_pair_of(number, *pair) for number, pair in enumerate(pairs)]
    _refuse_overlap(copies)
    for source, destination in copies:
        destination[:] = source


def count_nonfinite(data: BytesLike, dtype: str, threads: int) -> int:  # noqa: ARG001 - NumPy has one
    values = np.frombuffer(bytes_of(data), np.uint8)
    if dtype not in _PATTERNS:
        return 0
    kind, mask, value = _PATTERNS[dtype]
    words = np.dtype(kind)
    n_words = 2 if dtype.startswith("complex") else 1
    if values.nbytes % (words.itemsize * n_words):
        raise ValueError(f"{values.nbytes} bytes are no whole number of {dtype}")
    count = 0
    for start in range(0, values.nbytes, _PART_BYTES):  # in parts: masks of everything would double the memory
        bits: npt.NDArray[Any] = values[start : start + _PART_BYTES].view(words)
        hits = (bits & words.type(mask)) == words.type(value)
        count += int(np.count_nonzero(hits.reshape(-1, n_words).any(axis=1)))
    return count


def prefault(data: BytesLike, threads: int) -> None:  # noqa: ARG001 - NumPy has one
    pages = np.frombuffer(bytes_of(data, is_target=True), np.uint8)
    pages[::_PAGE_BYTES] |= 0
    pages[-1:] |= 0  # the last page, where the buffer begins within a page


def _pair_of(number: int, source: BytesLike, destination: BytesLike) -> tuple[Bytes, Bytes]:
    from_, to = (
        np.frombuffer(bytes_of(source), np.uint8),
        np.frombuffer(bytes_of(destination, is_target=True), np.uint8),
    )
    if from_.nbytes != to.nbytes:
        raise ValueError(f"pair {number}: a source of {from_.nbytes} bytes for a destination of {to.nbytes}")
    return from_, to


def _refuse_overlap(copies: list[tuple[Bytes, Bytes]]) -> None:
    intervals = sorted(
        (array.ctypes.data, array.ctypes.data + array.nbytes, is_written)
        for pair in copies
        for array, is_written in zip(pair, (False, True), strict=True)
        if array.nbytes
    )
    end_of_all = end_of_written = 0
    for begin, end, is_written in intervals:
        if begin < (end_of_all if is_written else end_of_written):
            raise ValueError("a destination overlaps another buffer of the same copy")
        end_of_all = max(end_of_all, end)
        if is_written:
            end_of_written = max(end_of_written, end)
