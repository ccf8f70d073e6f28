"""Boxes and spans: whatever is cut, the parts are disjoint, complete and level."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, strategies as st

from hpcckpt.collective import sharding
from hpcckpt.collective.sharding import (
    ALIGNMENT_BYTES,
    boxes_of_span,
    coverage_problems,
    cut_points,
    flat_index,
    intersect,
    split_over,
    strides,
)
from hpcckpt.core.plan import Declaration
from hpcckpt.core.tensors import Extent, TensorSpec, itemsize

pytestmark = pytest.mark.one_case

shapes = st.lists(st.integers(0, 5), max_size=4).map(tuple)
full_shapes = st.lists(st.integers(1, 5), max_size=4).map(tuple)


@st.composite
def boxes_in(draw, shape):
    """Draw a box that lies in `shape`."""
    sides = [sorted(draw(st.tuples(st.integers(0, n), st.integers(0, n)))) for n in shape]
    return Extent(tuple(low for low, _ in sides), tuple(high - low for low, high in sides))


def elements(shape, box):
    """Return the flat numbers of a box's elements."""
    numbers = np.arange(math.prod(shape)).reshape(shape)
    return numbers[tuple(slice(o, o + n) for o, n in zip(box.offset, box.shape, strict=True))].ravel().tolist()


# -- boxes ---------------------------------------------------------------------------------------


@given(full_shapes.flatmap(lambda shape: st.tuples(st.just(shape), boxes_in(shape), boxes_in(shape))))
def test_the_intersection_of_boxes_is_what_both_hold(case):
    shape, a, b = case
    shared = intersect(a, b)
    expected = sorted(set(elements(shape, a)) & set(elements(shape, b)))
    assert (elements(shape, shared) if shared else []) == expected
    assert intersect(b, a) == shared


@given(full_shapes)
def test_strides_and_flat_index_are_those_of_c_order(shape):
    array = np.empty(shape, np.int8)
    assert strides(shape) == array.strides
    for index in itertools.islice(np.ndindex(*shape), 50):
        assert (
            flat_index(shape, index) == np.ravel_multi_index(index, shape) if shape else flat_index(shape, index) == 0
        )


@given(full_shapes.flatmap(lambda s: st.tuples(st.just(s), st.integers(0, math.prod(s)), st.integers(0, math.prod(s)))))
def test_the_boxes_of_a_span_are_its_elements_in_order(case):
    shape, a, b = case
    start, stop = sorted((a, b))
    boxes = list(boxes_of_span(shape, start, stop))
    assert [number for box in boxes for number in elements(shape, box)] == list(range(start, stop))
    assert len(boxes) <= max(1, 2 * len(shape) - 1)
    assert all(box.n_elements for box in boxes)


def test_an_empty_span_has_no_boxes():
    assert list(boxes_of_span((0, 5), 0, 0)) == []
    assert list(boxes_of_span((3, 5), 7, 7)) == []


# -- coverage ------------------------------------------------------------------------------------


@st.composite
def tilings(draw):
    """Draw a shape and boxes that tile it, cut in two again and again."""
    shape = draw(full_shapes)
    boxes = [Extent.whole(shape)]
    for _ in range(draw(st.integers(0, 6)) if shape else 0):
        box = boxes.pop(draw(st.integers(0, len(boxes) - 1)))
        axis = draw(st.integers(0, len(shape) - 1))
        cut = draw(st.integers(0, box.shape[axis]))
        for begin, length in ((0, cut), (cut, box.shape[axis] - cut)):
            offset = tuple(o + begin if a == axis else o for a, o in enumerate(box.offset))
            boxes.append(Extent(offset, tuple(length if a == axis else n for a, n in enumerate(box.shape))))
    return TensorSpec("x", "int8", shape, "sharded"), draw(st.permutations(boxes))


@given(tilings())
def test_boxes_that_tile_a_tensor_have_no_problems(tiling):
    spec, boxes = tiling
    assert coverage_problems(spec, boxes) == []


@given(tilings(), st.data())
def test_a_missing_box_is_a_hole(tiling, data):
    spec, boxes = tiling
    full = [box for box in boxes if box.n_elements]
    gone = data.draw(st.sampled_from(full))
    kinds = [problem.kind for problem in coverage_problems(spec, [box for box in boxes if box != gone])]
    assert kinds == ["hole"]


@given(tilings(), st.data())
def test_a_box_too_many_is_an_overlap(tiling, data):
    spec, boxes = tiling
    more = data.draw(boxes_in(spec.shape).filter(lambda box: box.n_elements and box not in boxes))
    assert {problem.kind for problem in coverage_problems(spec, [*boxes, more])} == {"overlap"}


@given(st.lists(boxes_in((6, 6)), max_size=8))
def test_the_sweep_finds_exactly_the_overlaps_that_comparing_all_pairs_finds(boxes):
    spec = TensorSpec("x", "int8", (6, 6), "sharded")
    distinct = {box for box in boxes if box.n_elements}
    expected = sum(intersect(a, b) is not None for a, b in itertools.combinations(distinct, 2))
    found = [problem for problem in coverage_problems(spec, boxes) if problem.kind == "overlap"]
    assert len(found) == expected


def test_tilings_are_found_without_comparing_pairs_and_other_boxes_by_few_of_them(monkeypatch):
    """Columns, each cut at another row, all overlap along the axis with most cuts; a file may have a million boxes."""
    n = 3000
    compared = []
    monkeypatch.setattr(sharding, "intersect", lambda a, b: compared.append((a, b)))
    columns = [Extent((row, k), (end - row, 1)) for k in range(n) for row, end in ((0, 1 + k), (1 + k, n + 1))]
    spec = TensorSpec("x", "int8", (n + 1, n), "sharded")
    assert coverage_problems(spec, columns) == []
    assert not compared
    moved = Extent((0, 1), (1, 1))
    assert [problem.kind for problem in coverage_problems(spec, [moved, *columns[1:]])] == ["hole"]
    assert 0 < len(compared) <= sharding._MAX_COMPARISONS


# -- cutting -------------------------------------------------------------------------------------


loads = st.lists(st.integers(0, 10**6), min_size=1, max_size=12)


@given(st.integers(0, 10**7), loads)
def test_cut_points_rise_from_nothing_to_everything(total, loads):
    points = cut_points(total, loads)
    assert (points[0], points[-1], len(points)) == (0, total, len(loads) + 1)
    assert points == sorted(points)


@given(st.integers(0, 10**7), loads)
def test_cut_points_end_loads_as_level_as_can_be(total, loads):
    points = cut_points(total, loads)
    shares = [end - begin for begin, end in itertools.pairwise(points)]
    ends = [load + share for load, share in zip(loads, shares, strict=True)]
    level = max((end for end, share in zip(ends, shares, strict=True) if share), default=0)
    for end, load in zip(ends, loads, strict=True):
        assert end >= level - 2 or total == 0, "a rank below the level could have taken more"
        assert end == load or end <= level


@given(st.integers(0, 2**60), st.lists(st.integers(0, 2**58), min_size=1, max_size=8))
def test_cut_points_of_any_size_lose_nothing(total, loads):
    points = cut_points(total, loads)
    assert points == sorted(points)
    assert (points[0], points[-1]) == (0, total)


DTYPES = ["bool", "float32", "complex128", "|V7", "|V100", "<U5"]


@st.composite
def box_lists(draw):
    """Draw boxes of tensors of any dtype and size, as every rank holds them."""
    sizes = draw(st.lists(st.one_of(st.integers(0, 9), st.integers(0, 5000)), max_size=8))
    specs = [TensorSpec(f"t{k}", draw(st.sampled_from(DTYPES)), (size,)) for k, size in enumerate(sizes)]
    return [Declaration(spec, Extent.whole(spec.shape)) for spec in specs]


owner_lists = st.lists(st.integers(0, 20), min_size=1, max_size=8, unique=True).map(sorted)


@given(owner_lists, box_lists(), st.dictionaries(st.integers(0, 20), st.integers(0, 10**5)))
def test_split_boxes_are_written_once_and_whole(owners, boxes, loads):
    items = split_over(owners, boxes, dict(loads))
    assert set(items) <= set(owners)
    for box in boxes:
        spans = sorted((i.start, i.stop) for rank in owners for i in items.get(rank, []) if i.spec == box.spec)
        ends = [0, *itertools.chain.from_iterable(spans), box.extent.n_elements]
        assert ends[::2] == ends[1::2], "the spans of a tensor meet and fill it"
        assert len(spans) == 1 or all(start < stop for start, stop in spans)
        assert len(spans) >= 1, "an empty tensor is written too"


@given(owner_lists, box_lists())
def test_split_boxes_are_counted_where_they_go(owners, boxes):
    counted = {3: 10}
    items = split_over(owners, boxes, counted)
    for rank in {*owners, 3}:
        assert counted.get(rank, 0) == (10 if rank == 3 else 0) + sum(item.nbytes for item in items.get(rank, []))


@given(owner_lists, box_lists())
def test_split_boxes_are_level_within_an_element_or_a_line_of_cache(owners, boxes):
    counted: dict[int, int] = {}
    split_over(owners, boxes, counted)
    ends = [counted.get(rank, 0) for rank in owners]
    slack = ALIGNMENT_BYTES + max((itemsize(box.spec.dtype) for box in boxes), default=0) + 2
    assert max(ends) - min(ends) <= 2 * slack


@given(owner_lists, box_lists())
def test_cuts_fall_on_whole_lines_of_cache(owners, boxes):
    for items in split_over(owners, boxes, {}).values():
        for item in items:
            width = itemsize(item.spec.dtype)
            if item.start and ALIGNMENT_BYTES % width == 0:
                assert item.start * width % ALIGNMENT_BYTES == 0


@pytest.mark.parametrize("n_ranks", [1, 2, 3, 7])
def test_a_rank_holds_at_most_two_partial_tensors(n_ranks):
    boxes = [
        Declaration(spec, Extent.whole(spec.shape))
        for spec in (TensorSpec(f"t{k}", "int8", (10_000,)) for k in range(20))
    ]
    for items in split_over(range(n_ranks), boxes, {}).values():
        assert sum((item.start, item.stop) != (0, 10_000) for item in items) <= 2
