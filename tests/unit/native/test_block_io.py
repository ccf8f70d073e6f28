"""Writing and reading whole pieces: contents, checksums, and what verification notices."""

from __future__ import annotations

import os
import random
from types import ModuleType
from typing import Any

import crc32c as reference
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

pytestmark = pytest.mark.one_case

BLOCK = 4096
EDGES = [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK - 1, 3 * BLOCK, 3 * BLOCK + 1]
LARGE_EDGES = [(1 << 18) + d for d in (-1, 0, 1)] + [(1 << 20) + d for d in (-1, 0, 1)] + [(9 << 20) + 5]


def random_bytes(nbytes: int, seed: int = 0) -> bytes:
    return random.Random(f"{nbytes}-{seed}").randbytes(nbytes)


def crcs_of(data: bytes, block_bytes: int = BLOCK) -> list[int]:
    return [reference.crc32c(data[i : i + block_bytes]) for i in range(0, len(data), block_bytes)]


@pytest.mark.parametrize("offset", [0, 1, 4095])
@pytest.mark.parametrize("nbytes", EDGES)
def test_what_is_written_is_read_back_and_verified(
    io: ModuleType, fd: int, nbytes: int, offset: int, sharing: dict[str, Any]
) -> None:
    data = random_bytes(nbytes)
    assert io.write_blocks(fd, [(data, offset)], block_bytes=BLOCK, **sharing) == [crcs_of(data)]
    assert os.pread(fd, nbytes + 1, offset) == data
    target = bytearray(nbytes)
    assert io.read_blocks(fd, [(target, offset, crcs_of(data))], block_bytes=BLOCK, threads=sharing["threads"]) == []
    assert target == data


@pytest.mark.parametrize("nbytes", LARGE_EDGES)
def test_blocks_larger_than_the_cache_parts_are_whole(io: ModuleType, fd: int, nbytes: int) -> None:
    data = random_bytes(nbytes)
    crcs = crcs_of(data, io.BLOCK_BYTES)
    assert io.write_blocks(fd, [(data, 3)], threads=2) == [crcs]
    target = np.empty(nbytes, np.uint8)
    assert io.read_blocks(fd, [(target, 3, np.array(crcs, np.uint32))], threads=2) == []
    assert target.tobytes() == data


@pytest.mark.parametrize("offset", [0, 5])
@pytest.mark.parametrize("ahead", [-1, 1, 16, 31, 32, 4080], ids=lambda n: f"{n}-bytes-ahead")
@pytest.mark.parametrize("nbytes", [4095, 4096, (1 << 18) + 1, (3 << 20) + 100])
def test_where_memory_lies_within_its_page_makes_no_difference(
    io: ModuleType, fd: int, nbytes: int, ahead: int, offset: int, sharing: dict[str, Any]
) -> None:
    data = random_bytes(nbytes)
    crcs = crcs_of(data, io.BLOCK_BYTES)
    memory = np.full(nbytes + 3 * 4096, 7, np.uint8)

    def at(place: int) -> np.ndarray:
        start = 4096 + (place - memory.ctypes.data) % 4096
        return memory[start : start + nbytes]

    source = at(offset - ahead)
    source[:] = np.frombuffer(data, np.uint8)
    assert io.write_blocks(fd, [(source, offset)], **sharing) == [crcs]
    assert os.pread(fd, nbytes + 1, offset) == data
    memory[:] = 7
    target = at(offset + ahead)
    checked = (target, offset, np.array(crcs, np.uint32))
    assert io.read_blocks(fd, [checked], threads=sharing["threads"]) == []
    assert target.tobytes() == data
    target[:] = 7
    assert memory.min() == memory.max() == 7  # nothing else was written
    assert io.read_blocks(fd, [(target, offset, None)], threads=sharing["threads"]) == []
    assert target.tobytes() == data
    os.truncate(fd, offset + nbytes // 2)
    with pytest.raises(EOFError, match=f"wanted {nbytes} bytes at offset {offset}, got {nbytes // 2}"):
        io.read_blocks(fd, [checked], threads=sharing["threads"])


@pytest.mark.parametrize("ahead", [0, 16], ids=["same-place", "16-bytes-ahead"])
def test_a_write_that_fails_is_reported_wherever_memory_lies(
    io: ModuleType, ahead: int, sharing: dict[str, Any]
) -> None:
    memory = np.zeros((1 << 20) + 2 * 4096, np.uint8)
    start = (-ahead - memory.ctypes.data) % 4096
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        with pytest.raises(OSError, match="No space left on device"):
            io.write_blocks(full, [(memory[start : start + (1 << 20)], 0)], **sharing)
    finally:
        os.close(full)


@given(
    lengths=st.lists(st.integers(0, 300), max_size=12),
    block_bytes=st.integers(1, 120),
    threads=st.integers(1, 4),
    is_one=st.booleans(),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_list_of_pieces_comes_back(
    io: ModuleType, fd: int, lengths: list[int], block_bytes: int, threads: int, is_one: bool
) -> None:
    pieces = [random_bytes(n, seed) for seed, n in enumerate(lengths)]
    offsets = [1000 * (len(pieces) - i) for i in range(len(pieces))]  # backwards, with holes
    written = io.write_blocks(
        fd,
        list(zip(pieces, offsets, strict=True)),
        block_bytes=block_bytes,
        threads=threads,
        path="p",
        is_one_writer=is_one,
    )
    assert written == [crcs_of(piece, block_bytes) for piece in pieces]
    targets = [bytearray(len(piece)) for piece in pieces]
    wanted = list(zip(targets, offsets, written, strict=True))
    assert io.read_blocks(fd, wanted, block_bytes=block_bytes, threads=threads) == []
    assert targets == pieces


@given(bit=st.integers(0, 8 * (5 * BLOCK + 7) - 1), threads=st.integers(1, 3))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_flipped_bit_is_found_in_its_block(io: ModuleType, fd: int, bit: int, threads: int) -> None:
    data = random_bytes(5 * BLOCK + 7)
    crcs = io.write_blocks(fd, [(data[:100], 0), (data, 100)], block_bytes=BLOCK)
    byte = bit // 8
    os.pwrite(fd, bytes([data[byte] ^ 1 << bit % 8]), 100 + byte)
    pieces = [(bytearray(100), 0, None), (bytearray(len(data)), 100, crcs[1])]
    assert io.read_blocks(fd, pieces, block_bytes=BLOCK, threads=threads) == [(1, byte // BLOCK)]


def test_all_bad_blocks_are_listed_in_order(io: ModuleType, fd: int) -> None:
    pieces = [(random_bytes(3 * BLOCK, 1), 0), (random_bytes(2 * BLOCK, 2), 3 * BLOCK)]
    crcs = io.write_blocks(fd, pieces, block_bytes=BLOCK)
    for offset in (0, 2 * BLOCK, 4 * BLOCK):
        os.pwrite(fd, b"??", offset)
    targets = [(bytearray(3 * BLOCK), 0, crcs[0]), (bytearray(2 * BLOCK), 3 * BLOCK, crcs[1])]
    assert io.read_blocks(fd, targets, block_bytes=BLOCK, threads=3) == [(0, 0), (0, 2), (1, 1)]


def test_without_expected_crcs_nothing_is_verified(io: ModuleType, fd: int) -> None:
    os.pwrite(fd, b"anything", 0)
    target = bytearray(8)
    assert io.read_blocks(fd, [(target, 0, None)]) == []
    assert target == b"anything"


def test_a_tensor_buffer_can_be_written_and_read_into(io: ModuleType, fd: int) -> None:
    source, target = np.arange(5000, dtype=np.float32), np.zeros(5000, np.float32)
    crcs = io.write_blocks(fd, [(io.view(source), 8)])
    assert io.read_blocks(fd, [(io.view(target), 8, crcs[0])]) == []
    assert (source == target).all()


def test_a_destination_must_be_writable(io: ModuleType, fd: int) -> None:
    frozen = np.zeros(4, np.uint8)
    frozen.flags.writeable = False
    for target in (b"abcd", memoryview(b"abcd"), frozen):
        with pytest.raises(BufferError, match="read-only: a destination must be writable"):
            io.read_blocks(fd, [(target, 0, None)])


def test_pieces_that_make_no_sense_are_refused_before_anything_is_moved(io: ModuleType, fd: int) -> None:
    with pytest.raises(ValueError, match="negative file offset -1"):
        io.write_blocks(fd, [(b"abc", 0), (b"abc", -1)])
    with pytest.raises(ValueError, match="2 expected CRCs for 1 blocks"):
        io.read_blocks(fd, [(bytearray(4), 0, [1, 2])])
    with pytest.raises(ValueError, match="integers of 32 bits"):
        io.read_blocks(fd, [(bytearray(4), 0, [1 << 32])])
    with pytest.raises(TypeError, match="bytes-like"):
        io.write_blocks(fd, [(b"abc", 0), (None, 0)])
    assert os.fstat(fd).st_size == 0


@pytest.mark.parametrize("block_bytes", [0, -1])
def test_a_block_has_at_least_one_byte(io: ModuleType, fd: int, block_bytes: int) -> None:
    with pytest.raises(ValueError, match="block_bytes"):
        io.write_blocks(fd, [(b"abc", 0)], block_bytes=block_bytes)
    with pytest.raises(ValueError, match="block_bytes"):
        io.read_blocks(fd, [(bytearray(3), 0, None)], block_bytes=block_bytes)
