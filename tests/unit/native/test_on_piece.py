"""Each piece that is written is reported: once, after its bytes, and with its memory released."""

from __future__ import annotations

import errno
import os
import threading
import weakref
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

BLOCK = 4096
LENGTHS = [0, 1, BLOCK, BLOCK + 1, 0, 5 * BLOCK - 1, 3, 0]


def pieces_of(lengths: list[int]) -> list[tuple[np.ndarray, int]]:
    offsets = np.cumsum([0, *lengths])
    return [(np.full(n, 1 + i % 250, np.uint8), int(offsets[i])) for i, n in enumerate(lengths)]


@given(lengths=st.lists(st.integers(0, 3 * BLOCK), max_size=15), threads=st.integers(1, 20), is_one=st.booleans())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_each_piece_is_told_of_once_and_nothing_else_changes(
    io: ModuleType, fd: int, lengths: list[int], threads: int, is_one: bool
) -> None:
    told: list[int] = []
    pieces = pieces_of(lengths)
    sharing = {"threads": threads, "is_one_writer": is_one}
    crcs = io.write_blocks(fd, pieces, block_bytes=BLOCK, on_piece=told.append, **sharing)
    assert sorted(told) == list(range(len(lengths)))
    assert crcs == io.write_blocks(fd, pieces, block_bytes=BLOCK, **sharing)
    assert os.pread(fd, sum(lengths) + 1, 0)[: sum(lengths)] == b"".join(data.tobytes() for data, _ in pieces)


def test_the_bytes_are_in_the_file_when_it_is_told(io: ModuleType, fd: int, sharing: dict[str, Any]) -> None:
    pieces = pieces_of(LENGTHS)
    wrong: list[int] = []

    def compare(piece: int) -> None:
        data, offset = pieces[piece]
        if os.pread(fd, data.nbytes, offset) != data.tobytes():
            wrong.append(piece)

    io.write_blocks(fd, pieces, block_bytes=BLOCK, **sharing, on_piece=compare)
    assert wrong == []


def test_a_piece_nobody_else_holds_is_dead_when_it_is_told(io: ModuleType, fd: int, sharing: dict[str, Any]) -> None:
    owners: list[weakref.ref[np.ndarray]] = []
    alive: list[int] = []

    def give() -> Iterator[tuple[np.ndarray, int]]:
        for data, offset in pieces_of(LENGTHS):
            owners.append(weakref.ref(data))
            yield data, offset

    def look(piece: int) -> None:
        if owners[piece]() is not None:
            alive.append(piece)

    io.write_blocks(fd, give(), block_bytes=BLOCK, **sharing, on_piece=look)
    assert len(owners) == len(LENGTHS)
    assert alive == []


@pytest.mark.parametrize("bad", [[0], [1], [5, 2], range(8)])
def test_the_first_error_of_the_function_comes_after_all_is_written(
    io: ModuleType, fd: int, bad: list[int], sharing: dict[str, Any]
) -> None:
    told: list[int] = []
    raised: list[int] = []

    def fail(piece: int) -> None:
        told.append(piece)
        if piece in bad:
            raised.append(piece)
            raise RuntimeError(f"piece {piece}")

    pieces = pieces_of(LENGTHS)
    with pytest.raises(RuntimeError) as caught:
        io.write_blocks(fd, pieces, block_bytes=BLOCK, **sharing, on_piece=fail)
    assert str(caught.value) == f"piece {raised[0]}"
    assert sorted(told) == list(range(len(LENGTHS)))
    assert os.pread(fd, 1 << 20, 0) == b"".join(data.tobytes() for data, _ in pieces)


def test_a_piece_that_could_not_be_written_is_not_told_of(io: ModuleType, sharing: dict[str, Any]) -> None:
    told: list[int] = []
    fd = os.open("/dev/full", os.O_WRONLY)
    try:
        with pytest.raises(OSError, match="No space left") as caught:
            io.write_blocks(fd, pieces_of([0, 100, 0, 200]), **sharing, path="there", on_piece=told.append)
    finally:
        os.close(fd)
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, "there")
    assert sorted(told) == [0, 2]


def test_an_error_of_writing_comes_first_and_keeps_the_other(io: ModuleType) -> None:
    def fail(piece: int) -> None:
        raise KeyError(piece)

    fd = os.open("/dev/full", os.O_WRONLY)
    try:
        with pytest.raises(OSError, match="No space left") as caught:
            io.write_blocks(fd, pieces_of([0, 100]), on_piece=fail)
    finally:
        os.close(fd)
    assert isinstance(caught.value.__context__, KeyError)


def test_it_can_be_told_while_python_threads_are_busy(io: ModuleType, fd: int) -> None:
    is_over = threading.Event()
    told: list[int] = []

    def keep_the_interpreter_busy() -> None:
        while not is_over.is_set():
            sum(range(1000))

    busy = threading.Thread(target=keep_the_interpreter_busy)
    busy.start()
    try:
        io.write_blocks(fd, pieces_of([100] * 50), threads=4, on_piece=told.append)
    finally:
        is_over.set()
        busy.join()
    assert sorted(told) == list(range(50))
