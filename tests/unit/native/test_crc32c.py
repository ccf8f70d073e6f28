from __future__ import annotations

import random
from types import ModuleType

import crc32c as reference
import numpy as np
import pytest
from hypothesis import given, strategies as st

from hpcckpt import native

pytestmark = pytest.mark.one_case

RFC_3720 = {
    bytes(32): 0x8A9136AA,
    b"\xff" * 32: 0x62A8AB43,
    bytes(range(32)): 0x46DD794E,
    bytes(reversed(range(32))): 0x113FDB5C,
    bytes.fromhex(
        "01c00000 00000000 00000000 00000000 14000000 00000400 00000014 00000018 28000000 00000000 02000000 00000000"
    ): 0xD9963A56,
    b"123456789": 0xE3069283,
    b"": 0,
}
EDGES = [n + d for n in (0, 8, 256, 768, 1024, 3 * 4096, 3 * 8192) for d in (-1, 0, 1) if n + d >= 0]


def kernels() -> list[str]:
    core = pytest.importorskip("hpcckpt.native._native", reason="the native part is not built")
    names: list[str] = core.crc32c_kernels()
    return names


@pytest.mark.parametrize("data", RFC_3720, ids=lambda data: f"{len(data)}-{data[:2].hex()}")
def test_the_vectors_of_rfc_3720_hold(io: ModuleType, data: bytes) -> None:
    assert io.crc32c(data) == RFC_3720[data]


def test_every_length_and_alignment_agrees_with_the_reference(io: ModuleType) -> None:
    data = random.Random(1).randbytes(3 * 8192 + 64)
    for nbytes in EDGES:
        for start in range(17):
            part = memoryview(data)[start : start + nbytes]
            assert io.crc32c(part) == reference.crc32c(part), (nbytes, start)


def test_every_kernel_of_this_processor_agrees_with_the_reference() -> None:
    core = pytest.importorskip("hpcckpt.native._native", reason="the native part is not built")
    data = random.Random(2).randbytes(100_000)
    assert kernels()[-1] == "table"
    for kernel in kernels():
        for nbytes in [*EDGES, 100_000 - 16]:
            for start in (0, 1, 7, 16):
                part = memoryview(data)[start : start + nbytes]
                assert core.crc32c_with_kernel(kernel, part, 5) == reference.crc32c(part, 5), (kernel, nbytes, start)


def test_an_unknown_kernel_is_refused() -> None:
    core = pytest.importorskip("hpcckpt.native._native", reason="the native part is not built")
    with pytest.raises(ValueError, match="no CRC32C kernel abacus"):
        core.crc32c_with_kernel("abacus", b"", 0)


@given(data=st.binary(max_size=5000), cut=st.integers(0, 5000))
def test_going_on_and_combining_equal_one_pass(data: bytes, cut: int) -> None:
    first, second = data[:cut], data[cut:]
    whole = native.crc32c(data)
    assert whole == reference.crc32c(data)
    assert native.crc32c(second, native.crc32c(first)) == whole
    assert native.crc32c_combine(native.crc32c(first), native.crc32c(second), len(second)) == whole


def test_combining_agrees_between_implementations_for_huge_lengths(io: ModuleType) -> None:
    assert io.crc32c_combine(0xDEADBEEF, 0x12345678, 1 << 50) == _pure_combine(0xDEADBEEF, 0x12345678, 1 << 50)
    with pytest.raises(ValueError, match="negative"):
        io.crc32c_combine(0, 0, -1)


def _pure_combine(first: int, second: int, nbytes: int) -> int:
    from hpcckpt.native import _pure

    return _pure.crc32c_combine(first, second, nbytes)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("nbytes", [0, 1, 4095, 4096, 4097, 8191, 8192, 8193, 100_000])
def test_blocks_are_summed_one_by_one_and_nothing_has_none(io: ModuleType, nbytes: int, threads: int) -> None:
    data = random.Random(nbytes).randbytes(nbytes)
    expected = [reference.crc32c(data[i : i + 4096]) for i in range(0, nbytes, 4096)]
    assert io.crc32c_blocks(data, 4096, threads) == expected


@pytest.mark.parametrize("dtype", ["c16", "M8[s]", "?", "S5", "U3", "f2", ">i4"])
def test_any_dtype_is_summed_as_its_bytes(io: ModuleType, dtype: str) -> None:
    array = np.zeros((3, 4), dtype)
    assert io.crc32c(array) == reference.crc32c(array.tobytes())


def test_what_has_no_plain_bytes_is_refused(io: ModuleType) -> None:
    with pytest.raises(TypeError, match="expected a bytes-like object, got int"):
        io.crc32c(3)
    with pytest.raises(BufferError, match="ndarray is not plain contiguous bytes"):
        io.crc32c(np.zeros((3, 4)).T)
    with pytest.raises(BufferError, match="memoryview is not plain contiguous bytes"):
        io.crc32c(memoryview(bytes(8))[::2])


@pytest.mark.parametrize(("block_bytes", "threads"), [(0, 1), (-1, 1), (1, 0), (1, -3)])
def test_counts_below_one_are_refused(io: ModuleType, block_bytes: int, threads: int) -> None:
    with pytest.raises(ValueError, match="not a positive number"):
        io.crc32c_blocks(b"", block_bytes, threads)
