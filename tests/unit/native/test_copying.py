"""Copying many buffers at once: every byte arrives, none beside it, and what makes no sense is refused."""

from __future__ import annotations

import random
from types import ModuleType

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

pytestmark = pytest.mark.one_case

KIB, MIB = 1 << 10, 1 << 20
# Around what the kernels work on: a cache line, the shortest and the longest lane, four of them, and a thread's range.
_LANES = [4 * KIB - 1, 4 * KIB + 65, 16 * KIB - 1, 16 * KIB, 16 * KIB + 65, 64 * KIB + 1, 256 * KIB, 256 * KIB + 1]
EDGES = [0, 1, 63, 64, 65, 127, 128, *_LANES, MIB, MIB + 63]


def random_array(nbytes: int, seed: int = 0) -> np.ndarray:
    return np.frombuffer(random.Random(f"{nbytes}-{seed}").randbytes(nbytes), np.uint8)


def kernels() -> list[str]:
    core = pytest.importorskip("hpcckpt.native._native", reason="the native part is not built")
    names: list[str] = core.copy_kernels()
    return names


@pytest.mark.parametrize("nbytes", EDGES)
def test_every_kernel_copies_all_bytes_and_no_other_at_any_alignment(nbytes: int) -> None:
    core = pytest.importorskip("hpcckpt.native._native", reason="the native part is not built")
    source = random_array(nbytes + 64)
    assert kernels()[-1] == "memcpy"
    for kernel in kernels():
        for shift_from, shift_to in [(0, 0), (1, 0), (0, 1), (7, 63), (16, 16), (33, 32)]:
            target = np.full(nbytes + 128, 0xEE, np.uint8)
            part = source[shift_from : shift_from + nbytes]
            core.copy_with_kernel(kernel, part, target[shift_to : shift_to + nbytes])
            assert (target[shift_to : shift_to + nbytes] == part).all(), (kernel, shift_from, shift_to)
            assert (target[:shift_to] == 0xEE).all(), (kernel, shift_from, shift_to)
            assert (target[shift_to + nbytes :] == 0xEE).all(), (kernel, shift_from, shift_to)


def test_an_unknown_kernel_is_refused() -> None:
    core = pytest.importorskip("hpcckpt.native._native", reason="the native part is not built")
    with pytest.raises(ValueError, match="no copy kernel abacus"):
        core.copy_with_kernel("abacus", b"", bytearray())


@given(
    lengths=st.lists(st.integers(0, 300), max_size=12),
    gaps=st.integers(0, 5),
    threads=st.integers(1, 16),
    data=st.data(),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_list_of_pairs_is_copied(
    io: ModuleType, lengths: list[int], gaps: int, threads: int, data: st.DataObject
) -> None:
    sources = [random_array(n, seed) for seed, n in enumerate(lengths)]
    place = np.full(sum(lengths) + gaps * len(lengths), 0xEE, np.uint8)
    starts = np.cumsum([0, *[n + gaps for n in lengths]])
    order = data.draw(st.permutations(range(len(lengths))))
    io.copy_pieces([(sources[i], place[starts[i] : starts[i] + lengths[i]]) for i in order], threads)
    expected = b"".join(source.tobytes() + b"\xee" * gaps for source in sources)
    assert place.tobytes() == expected


@pytest.mark.parametrize("threads", [1, 2, 50])
def test_much_memory_of_uneven_parts_arrives_whole(io: ModuleType, threads: int) -> None:
    # More than what is copied through the caches, so that the streaming kernels run.
    lengths = [0, 11 * MIB + 3, 1, 5 * MIB, 0, 40, 3 * MIB - 1, 255 * KIB]
    sources = [random_array(n, 1) for n in lengths]
    place = np.zeros(sum(lengths), np.uint8)
    starts = np.cumsum([0, *lengths])
    io.copy_pieces(iter([(s, place[a : a + s.nbytes]) for s, a in zip(sources, starts, strict=False)]), threads)
    assert place.tobytes() == b"".join(source.tobytes() for source in sources)


def test_nothing_to_copy_is_no_error(io: ModuleType) -> None:
    io.copy_pieces([])
    io.copy_pieces([(b"", bytearray())], threads=3)


def test_buffers_of_any_kind_are_copied_as_bytes(io: ModuleType) -> None:
    source = np.arange(5, dtype=np.complex128).reshape(5, 1)
    first, second = bytearray(80), np.zeros((10, 2), np.float32)
    io.copy_pieces([[io.view(source), first], (source, second)])
    assert bytes(first) == second.tobytes() == source.tobytes()


def test_lengths_of_a_pair_must_agree_and_nothing_is_copied(io: ModuleType) -> None:
    target = bytearray(3)
    with pytest.raises(ValueError, match="pair 1: a source of 3 bytes for a destination of 4"):
        io.copy_pieces([(b"abc", target), (b"abc", bytearray(4))])
    assert target == bytes(3)


def test_a_destination_must_be_writable(io: ModuleType) -> None:
    frozen = np.zeros(3, np.uint8)
    frozen.flags.writeable = False
    for target in (b"abc", frozen):
        with pytest.raises(BufferError, match="read-only: a destination must be writable"):
            io.copy_pieces([(b"xyz", target)])


def test_what_is_not_contiguous_or_no_buffer_is_refused(io: ModuleType) -> None:
    with pytest.raises(BufferError):
        io.copy_pieces([(np.zeros(8, np.uint8)[::2], bytearray(4))])
    with pytest.raises(TypeError, match="bytes-like"):
        io.copy_pieces([([1, 2], bytearray(2))])
    with pytest.raises(TypeError):
        io.copy_pieces([(b"abc",)])
    with pytest.raises(ValueError, match="threads: 0"):
        io.copy_pieces([], threads=0)


@pytest.mark.parametrize(
    "pairs",
    [
        [((0, 10), (0, 10))],
        [((0, 10), (9, 19))],
        [((9, 19), (0, 10))],
        [((0, 5), (20, 25)), ((5, 10), (24, 29))],
        [((0, 10), (20, 30)), ((25, 28), (40, 43))],
        [((0, 10), (20, 30)), ((40, 50), (5, 15))],
        [((0, 40), (50, 90)), ((1, 2), (95, 96)), ((60, 61), (97, 98))],
    ],
)
def test_a_destination_that_overlaps_anything_is_refused(
    io: ModuleType, pairs: list[tuple[tuple[int, int], tuple[int, int]]]
) -> None:
    memory = np.arange(100, dtype=np.uint8)
    with pytest.raises(ValueError, match="overlaps another buffer"):
        io.copy_pieces([(memory[slice(*source)], memory[slice(*target)]) for source, target in pairs])
    assert (memory == np.arange(100)).all()


def test_neighbours_and_a_source_used_twice_are_no_overlap(io: ModuleType) -> None:
    memory = np.arange(40, dtype=np.uint8)
    io.copy_pieces([(memory[:10], memory[10:20]), (memory[:10], memory[20:30]), (memory[5:5], memory[12:12])])
    assert memory[:30].tolist() == 3 * list(range(10))
