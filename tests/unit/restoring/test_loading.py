"""Reading boxes out of entries: whatever was cut how, the bytes are right, and entries that do not tile are refused."""

from __future__ import annotations

import dataclasses
import itertools
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from hpcckpt.backends.base import Backend
from hpcckpt.core.plan import StoredEntry, WriteItem, block_count
from hpcckpt.core.tensors import Extent, TensorSpec
from hpcckpt.errors import CorruptError, OptionError
from hpcckpt.format.manifest import Manifest
from hpcckpt.restoring.reader import StepReader, select

pytestmark = pytest.mark.one_case

BLOCK = 16


class MemoryBackend(Backend):
    """Entries that lie in memory."""

    name = "memory"

    def __init__(self, entries, data=b""):
        super().__init__()
        self.entries, self.data = entries, data

    def prepare(self, job, path):
        raise NotImplementedError

    def write(self, job, path, rank, payloads):
        raise NotImplementedError

    def index(self, path, manifest):
        return self.entries

    def read(self, path, manifest, requests):
        for request in requests:
            begin = request.entry.offset + request.start
            request.into[:] = np.frombuffer(self.data, np.uint8)[begin : begin + request.stop - request.start]
        return []


def entry(spec, extent, start=0, stop=None, rank=0, offset=0):
    item = WriteItem(spec, extent, start, extent.n_elements if stop is None else stop)
    return StoredEntry(item, rank, "data/x", offset, (0,) * block_count(item.nbytes, BLOCK))


def reader(spec, entries, data=b"", n_ranks=2):
    manifest = Manifest("a" * 8, "a" * 8, None, 1, n_ranks, "", "memory", BLOCK, (spec,), ())
    return StepReader(Path("here"), manifest, MemoryBackend({spec.name: tuple(entries)} if entries else {}, data))


@st.composite
def cut_tensors(draw):
    """Draw a tensor, boxes that tile it, and spans that tile each box."""
    shape = draw(st.lists(st.integers(1, 6), min_size=1, max_size=3).map(tuple))
    boxes = [Extent.whole(shape)]
    for _ in range(draw(st.integers(0, 4))):
        box = boxes.pop(draw(st.integers(0, len(boxes) - 1)))
        axis = draw(st.integers(0, len(shape) - 1))
        at = draw(st.integers(0, box.shape[axis]))
        for begin, length in ((0, at), (at, box.shape[axis] - at)):
            offset = tuple(o + begin * (a == axis) for a, o in enumerate(box.offset))
            boxes.append(Extent(offset, tuple(length if a == axis else n for a, n in enumerate(box.shape))))
    spans = []
    for box in (box for box in boxes if box.n_elements):
        cuts = sorted({0, box.n_elements, *draw(st.lists(st.integers(0, box.n_elements), max_size=3))})
        spans += [(box, begin, end) for begin, end in itertools.pairwise(cuts)]
    return shape, draw(st.permutations(spans))


def stored(shape, spans):
    """Return a tensor of distinct values, its entries, and their bytes."""
    full = np.arange(math.prod(shape), dtype=np.int16).reshape(shape)
    spec = TensorSpec("x", "int16", shape, "sharded")
    entries, data = [], b""
    for box, begin, end in spans:
        inside = full[tuple(slice(o, o + n) for o, n in zip(box.offset, box.shape, strict=True))].ravel()
        entries.append(entry(spec, box, begin, end, offset=len(data)))
        data += inside[begin:end].tobytes()
    return full, spec, entries, data


@given(cut_tensors(), st.data())
def test_any_box_of_any_cut_is_filled_exactly(cut, data):
    shape, spans = cut
    full, spec, entries, raw = stored(shape, spans)
    sides = [sorted(data.draw(st.tuples(st.integers(0, n), st.integers(0, n)))) for n in shape]
    wanted = Extent(tuple(a for a, _ in sides), tuple(b - a for a, b in sides))
    found = reader(spec, entries, raw).load("x", wanted)
    np.testing.assert_array_equal(found, full[tuple(slice(a, b) for a, b in sides)])


@given(cut_tensors(), st.data())
def test_a_missing_entry_is_refused(cut, data):
    shape, spans = cut
    _, spec, entries, _ = stored(shape, spans)
    entries.pop(data.draw(st.integers(0, len(entries) - 1)))
    with pytest.raises(CorruptError, match=r"'?x'?"):
        reader(spec, entries)


@given(cut_tensors(), st.data())
def test_an_entry_twice_is_refused(cut, data):
    shape, spans = cut
    _, spec, entries, _ = stored(shape, spans)
    entries.append(data.draw(st.sampled_from(entries)))
    with pytest.raises(CorruptError, match=r"'?x'?"):
        reader(spec, entries)


@given(cut_tensors(), st.data())
def test_an_entry_twice_in_place_of_another_is_refused(cut, data):
    """The number of elements is right, and memory that was not written would be handed out."""
    shape, spans = cut
    _, spec, entries, _ = stored(shape, spans)
    where, twice = (data.draw(st.integers(0, len(entries) - 1)) for _ in range(2))
    if where != twice:
        entries[where] = entries[twice]
        with pytest.raises(CorruptError, match=r"'?x'?"):
            reader(spec, entries)


def test_boxes_that_overlap_and_leave_a_hole_of_the_same_size_are_refused():
    spec = TensorSpec("x", "int16", (4, 4), "sharded")
    boxes = [Extent((0, 0), (2, 4)), Extent((1, 0), (2, 4))]
    with pytest.raises(CorruptError, match="overlap"):
        reader(spec, [entry(spec, box) for box in boxes])


def test_spans_that_overlap_and_leave_a_hole_of_the_same_size_are_refused():
    spec = TensorSpec("x", "int16", (8,))
    with pytest.raises(CorruptError, match="overlap"):
        reader(spec, [entry(spec, Extent.whole((8,)), 0, 4), entry(spec, Extent.whole((8,)), 3, 7)])


def of_rank(rank, start=0, stop=None):
    spec = TensorSpec("x", "int16", (rank + 1,), "per-rank")
    return entry(spec, Extent.whole((rank + 1,)), start, stop, rank)


PER_RANK = {
    "none": [],
    "one missing": [of_rank(0)],
    "one twice": [of_rank(0), of_rank(1), of_rank(1)],
    "one of a rank that was not": [of_rank(0), of_rank(2)],
    "a part": [of_rank(0), of_rank(1, 0, 1)],
}


@pytest.mark.parametrize("case", PER_RANK)
def test_per_rank_entries_that_are_not_one_for_each_rank_are_refused(case):
    spec = TensorSpec("x", "int16", (1,), "per-rank")
    with pytest.raises(CorruptError, match="'x'"):
        reader(spec, PER_RANK[case])


def test_per_rank_entries_of_different_shapes_are_read_by_rank():
    spec = TensorSpec("x", "int16", (1,), "per-rank")
    entries = [of_rank(0), of_rank(1)._replace(offset=2)]
    found = reader(spec, entries, np.array([7, 8, 9], np.int16).tobytes())
    assert [found.load_rank("x", rank).tolist() for rank in (0, 1)] == [[7], [8, 9]]


@pytest.mark.parametrize("change", [{"dtype": "uint16"}, {"kind": "root"}, {"shape": (5,)}])
def test_entries_of_another_dtype_kind_or_shape_are_refused(change):
    spec = TensorSpec("x", "int16", (4,))
    other = dataclasses.replace(spec, **change)
    with pytest.raises(CorruptError, match="another dtype, shape or kind"):
        reader(spec, [entry(other, Extent.whole((4,)))])


names = st.lists(st.text("ab/", min_size=1, max_size=5), unique=True, max_size=8)


@given(names)
def test_without_patterns_everything_is_selected(known):
    assert select(known, None) == known


@given(names.filter(bool), st.data())
def test_a_name_selects_itself_and_order_is_kept(known, data):
    wanted = data.draw(st.lists(st.sampled_from(known), unique=True))
    assert select(known, wanted) == [name for name in known if name in wanted]


def test_a_name_with_the_signs_of_a_pattern_selects_itself():
    assert select(["a[0]", "a0", "b*"], ["a[0]"]) == ["a[0]"]
    assert select(["a1", "a0", "b*"], ["a[0]"]) == ["a0"]
    with pytest.raises(OptionError):
        select(["a"], ["c?"])
