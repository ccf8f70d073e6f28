"""Boxes, spans and cuts, for any shapes and any numbers of ranks."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hpcckpt.collective.sharding import boxes_of_span, coverage_problems, cut_points, flat_index, intersect, split_over
from hpcckpt.plan import Declaration
from hpcckpt.tensors import Extent, TensorSpec

shapes = st.lists(st.integers(1, 5), max_size=4).map(tuple)
dtypes = st.sampled_from(["int8", "float16", "float32", "complex128", "<U5"])


@st.composite
def spans(draw):
    shape = draw(shapes)
    total = math.prod(shape)
    start = draw(st.integers(0, total))
    return shape, start, draw(st.integers(start, total))


@st.composite
def boxes(draw, shape):
    offset = [draw(st.integers(0, n - 1)) for n in shape]
    return Extent(tuple(offset), tuple(draw(st.integers(1, n - o)) for n, o in zip(shape, offset, strict=True)))


def cells(shape, box):
    grid = np.arange(math.prod(shape)).reshape(shape)
    return grid[tuple(slice(o, o + n) for o, n in zip(box.offset, box.shape, strict=True))].ravel().tolist()


@given(spans())
def test_the_boxes_of_a_span_are_its_elements_in_order(span):
    shape, start, stop = span
    found = [cell for box in boxes_of_span(shape, start, stop) for cell in cells(shape, box)]
    assert found == list(range(start, stop))


@given(spans())
def test_a_span_is_few_boxes(span):
    shape, start, stop = span
    assert len(list(boxes_of_span(shape, start, stop))) <= max(1, 2 * len(shape) - 1)


@given(st.data(), shapes)
def test_an_intersection_is_what_both_boxes_hold(data, shape):
    a, b = data.draw(boxes(shape)), data.draw(boxes(shape))
    shared = intersect(a, b)
    assert set(cells(shape, a)) & set(cells(shape, b)) == (set(cells(shape, shared)) if shared else set())


@given(st.data(), shapes)
def test_a_flat_index_is_numpys(data, shape):
    index = [data.draw(st.integers(0, n - 1)) for n in shape]
    assert flat_index(shape, index) == np.ravel_multi_index(index, shape) if shape else flat_index((), ()) == 0


@given(st.integers(0, 10**12), st.lists(st.integers(0, 10**12), min_size=1, max_size=40))
def test_cuts_rise_cover_all_and_level_the_loads(total, loads):
    points = cut_points(total, loads)
    assert points[0] == 0
    assert points[-1] == total
    assert points == sorted(points)
    filled = [load + end - begin for load, begin, end in zip(loads, points[:-1], points[1:], strict=True)]
    level = max((total + sum(loads)) / len(loads), 1)
    raised = [size for size, load in zip(filled, loads, strict=True) if size > load]
    assert all(size <= max(level, max(loads)) * (1 + 1e-9) + 2 for size in raised)


@given(st.lists(st.tuples(shapes, dtypes), min_size=1, max_size=12), st.integers(1, 9))
def test_ranks_share_out_every_element_once(tensors, n_ranks):
    declared = [
        Declaration(TensorSpec(f"t{i}", dtype, shape), Extent.whole(shape)) for i, (shape, dtype) in enumerate(tensors)
    ]
    loads = dict.fromkeys(range(n_ranks), 0)
    items = split_over(range(n_ranks), declared, loads)
    for declaration in declared:
        mine = [(i.start, i.stop) for rank in sorted(items) for i in items[rank] if i.spec == declaration.spec]
        covered = [element for start, stop in sorted(mine) for element in range(start, stop)]
        assert covered == list(range(declaration.extent.n_elements))
    assert sum(loads.values()) == sum(d.spec.nbytes for d in declared)


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 6))
def test_row_and_column_splits_cover_a_tensor(rows, columns, parts):
    spec = TensorSpec("t", "int8", (rows, columns), "sharded")
    edges = [columns * part // parts for part in range(parts + 1)]
    split = [Extent((0, a), (rows, b - a)) for a, b in zip(edges[:-1], edges[1:], strict=True)]
    assert coverage_problems(spec, split) == []


def test_an_overlap_and_a_hole_are_named():
    spec = TensorSpec("t", "int8", (4, 4), "sharded")
    overlap = coverage_problems(spec, [Extent((0, 0), (3, 4)), Extent((2, 0), (2, 4))])
    assert [problem.kind for problem in overlap] == ["overlap"]
    hole = coverage_problems(spec, [Extent((0, 0), (3, 4))])
    assert "12 of 16" in hole[0].message
