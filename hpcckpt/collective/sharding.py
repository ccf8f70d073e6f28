"""Boxes, spans and how bytes are split over ranks. Pure functions.

A *span* is a range of flat elements, in C order, of a box.  Replicated tensors are laid end to end
on one line and the line is cut into spans of equal bytes, so every byte is written once and every
rank writes as much as any other, however few or uneven the tensors are.
"""

from __future__ import annotations

import math
import secrets
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, islice
from typing import NamedTuple

from hpcckpt.core.plan import Declaration, WriteItem
from hpcckpt.core.tensors import Extent, TensorSpec, itemsize
from hpcckpt.errors import Problem

ALIGNMENT_BYTES = 64
MAX_OVERLAPS = 100
"""How many pairs are named: there can be as many as pairs of shards."""
_MAX_COMPARISONS = 1_000_000
_PRIME = (1 << 61) - 1


# -- boxes ---------------------------------------------------------------------------------------


def intersect(a: Extent, b: Extent) -> Extent | None:
    """Return the box that two boxes share, or ``None`` if it is empty."""
    offset = tuple(map(max, a.offset, b.offset))
    stop = tuple(min(x + m, y + n) for x, m, y, n in zip(a.offset, a.shape, b.offset, b.shape, strict=True))
    shape = tuple(end - begin for begin, end in zip(offset, stop, strict=True))
    return Extent(offset, shape) if all(length > 0 for length in shape) else None


def strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the C-order strides of a shape, in elements."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def boxes_of_span(shape: tuple[int, ...], start: int, stop: int) -> Iterator[Extent]:
    """Yield boxes that together are the flat elements `start` to `stop` of `shape`, in order.

    Each box is contiguous in C order: at most ``2 * ndim - 1`` of them.
    """
    if start >= stop:
        return
    if not shape:
        yield Extent((), ())
        return
    row = math.prod(shape[1:])
    first, head = divmod(start, row)
    last, tail = divmod(stop, row)
    if head and first == last:
        yield from _in_row(first, shape, head, tail)
        return
    if head:
        yield from _in_row(first, shape, head, row)
        first += 1
    if last > first:
        yield Extent((first, *[0] * (len(shape) - 1)), (last - first, *shape[1:]))
    if tail:
        yield from _in_row(last, shape, 0, tail)


def _in_row(index: int, shape: tuple[int, ...], start: int, stop: int) -> Iterator[Extent]:
    for box in boxes_of_span(shape[1:], start, stop):
        yield Extent((index, *box.offset), (1, *box.shape))


def flat_index(shape: tuple[int, ...], index: Sequence[int]) -> int:
    """Return the flat position, in C order, of an element."""
    return sum(i * stride for i, stride in zip(index, strides(shape), strict=True))


# -- coverage ------------------------------------------------------------------------------------


def coverage_problems(spec: TensorSpec, extents: Iterable[Extent]) -> list[Problem]:
    """Return what is wrong with a set of distinct boxes that should tile a tensor exactly."""
    boxes = [box for box in set(extents) if box.n_elements]
    if _is_tiled(spec.shape, boxes):
        return []
    problems = [
        Problem(spec.name, f"shards overlap: {_show(a)} and {_show(b)}", "overlap")
        for a, b in islice(_overlaps(boxes), MAX_OVERLAPS)
    ]
    covered, total = sum(box.n_elements for box in boxes), math.prod(spec.shape)
    if not problems:
        what = "" if covered < total else ", and overlap"
        problems.append(Problem(spec.name, f"shards cover {covered} of {total} elements{what}", "hole"))
    return problems


def _is_tiled(shape: tuple[int, ...], boxes: Sequence[Extent]) -> bool:
    """Return True if boxes within a tensor hold each of its elements once, in time linear in their number.

    A box is given the product, over its axes, of the differences of two random numbers: one for where it begins, one
    for where it ends.  The boxes of a tiling add up to the whole tensor's product, whichever numbers were drawn; others
    do so once in 2^61 draws for each axis.
    """
    if sum(box.n_elements for box in boxes) != math.prod(shape):
        return False
    numbers: list[dict[int, int]] = [defaultdict(lambda: secrets.randbelow(_PRIME)) for _ in shape]

    def product(offset: Sequence[int], lengths: Sequence[int]) -> int:
        ends = zip(numbers, offset, lengths, strict=True)
        return math.prod(drawn[begin] - drawn[begin + length] for drawn, begin, length in ends)

    total = sum(product(box.offset, box.shape) % _PRIME for box in boxes)
    return not boxes or (total - product([0] * len(shape), shape)) % _PRIME == 0


def _overlaps(boxes: list[Extent]) -> Iterator[tuple[Extent, Extent]]:
    """Yield overlapping pairs, as far as they are found in bounded time; a sweep along the axis with most cuts."""
    if not boxes or not boxes[0].offset:
        return
    axis = max(range(len(boxes[0].offset)), key=lambda a: len({box.offset[a] for box in boxes}))
    open_boxes: list[Extent] = []
    n_left = _MAX_COMPARISONS
    for box in sorted(boxes, key=lambda box: (box.offset[axis], box.offset, box.shape)):
        open_boxes = [other for other in open_boxes if other.offset[axis] + other.shape[axis] > box.offset[axis]]
        n_left -= len(open_boxes)
        if n_left < 0:
            return
        yield from ((other, box) for other in open_boxes if intersect(other, box))
        open_boxes.append(box)


def _show(box: Extent) -> str:
    ranges = (f"{begin}:{begin + length}" for begin, length in zip(box.offset, box.shape, strict=True))
    return f"[{', '.join(ranges)}]"


# -- splitting -----------------------------------------------------------------------------------


def cut_points(total: int, loads: Sequence[int]) -> list[int]:
    """Cut a line of `total` bytes into one part per rank so that loads end as level as can be.

    Parameters
    ----------
    total : int
        Bytes to give away.
    loads : sequence of int
        Bytes that each rank has to write anyway.

    Returns
    -------
    list of int
        ``len(loads) + 1`` rising positions; rank r gets the bytes from position r to r + 1.
    """
    level = _water_level(total, loads)
    shares = [max(0.0, level - load) for load in loads]
    scale = total / sum(shares) if sum(shares) else 0.0
    points, filled = [0], 0.0
    for share in shares:
        filled += share * scale
        points.append(min(total, round(filled)))
    points[-1] = total
    return points


def _water_level(total: int, loads: Sequence[int]) -> float:
    """Return the level to which `total` fills up the ranks with the smallest loads."""
    ordered = sorted(loads)
    filled = 0
    for count, load in enumerate(ordered, 1):
        filled += load
        level = (total + filled) / count
        if count == len(ordered) or level <= ordered[count]:
            return level
    return 0.0


class _Line(NamedTuple):
    """Boxes laid end to end on a line of bytes: how many elements each has, and at which byte it ends."""

    boxes: Sequence[Declaration]
    counts: list[int]
    ends: list[int]

    @classmethod
    def of(cls, boxes: Sequence[Declaration]) -> _Line:
        """Lay boxes out in their order."""
        counts = [box.extent.n_elements for box in boxes]
        sizes = [count * itemsize(box.spec.dtype) for count, box in zip(counts, boxes, strict=True)]
        return cls(boxes, counts, list(accumulate(sizes)))


def split_over(
    owners: Sequence[int], boxes: Sequence[Declaration], loads: dict[int, int]
) -> dict[int, list[WriteItem]]:
    """Split boxes that all `owners` hold into spans, one run of spans per owner; adds to `loads`.

    Parameters
    ----------
    owners : sequence of int
        Ranks that hold all of the boxes.
    boxes : sequence of Declaration
        What they hold, in the same order on all of them.
    loads : dict of int to int
        Bytes per rank so far; updated.
    """
    items: dict[int, list[WriteItem]] = {}
    line = _Line.of(boxes)
    points = cut_points(line.ends[-1] if boxes else 0, [loads.get(rank, 0) for rank in owners])
    for rank, begin, end in zip(owners, points[:-1], points[1:], strict=True):
        items[rank], nbytes = _items_between(line, begin, end, is_last=rank == owners[-1])
        loads[rank] = loads.get(rank, 0) + nbytes
    return items


def _items_between(line: _Line, begin: int, end: int, *, is_last: bool) -> tuple[list[WriteItem], int]:
    """Return what lies between two cuts, and its bytes; an empty box goes to the rank whose part it lies in."""
    items, total = [], 0
    first = bisect_left(line.ends, begin)
    box_end = line.ends[first - 1] if first else 0
    for number in range(first, len(line.boxes)):
        box, count, box_begin, box_end = line.boxes[number], line.counts[number], box_end, line.ends[number]
        if box_begin > end:
            break
        if box_begin == box_end:
            if begin <= box_begin < end or (is_last and box_begin == end):
                items.append(WriteItem(box.spec, box.extent, 0, 0))
        elif begin <= box_begin and box_end <= end:
            items.append(WriteItem(box.spec, box.extent, 0, count))
            total += box_end - box_begin
        else:
            width = itemsize(box.spec.dtype)
            start, stop = (_cut(cut - box_begin, box_end - box_begin) // width for cut in (begin, end))
            if start < stop:
                items.append(WriteItem(box.spec, box.extent, start, stop))
                total += (stop - start) * width
    return items, total


def _cut(position: int, nbytes: int) -> int:
    """Return where a cut at `position` of a box of `nbytes` falls: inside of it at multiples of 64 bytes."""
    return nbytes if position >= nbytes else max(0, position) // ALIGNMENT_BYTES * ALIGNMENT_BYTES
