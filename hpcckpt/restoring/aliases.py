"""Parts of a state that are the same object or have the same memory now, and other values each in the step.

``best = model.state_dict()`` shares the memory of the model until it is copied. Of two values only one can be restored
into one memory. Equal values, as those of tied weights, can. The same holds for one dict, variable, table, layer or
other object under two names, and for arrays that share a part of their memory, such as views of one buffer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from hpcckpt.core.tensors import Extent, TensorSpec
from hpcckpt.errors import Problem
from hpcckpt.restoring.reader import Array, StepReader
from hpcckpt.state.arrays import PerRankArrayLeaf
from hpcckpt.state.leaves import StateTree, TensorLeaf, names_below

_BOX_BYTES = 64 << 20
"""How much of each of two tensors is compared at once."""
OTHER_VALUE = "another value in the checkpoint"


class RestoredValues(NamedTuple):
    """The values that are restored.

    Attributes
    ----------
    reader : StepReader
        The step; tensors are read if their checksums cannot be compared.
    converted : mapping of str to ndarray
        Single numbers that were saved in another form, as the state has them.
    objects : mapping of str to object
        The JSON values.
    rank : int or None
        This rank, if the step was saved by the same number of ranks.
    """

    reader: StepReader
    converted: Mapping[str, Array]
    objects: Mapping[str, Any]
    rank: int | None

    def are_same(self, one: str, other: str) -> bool:
        """Return True if two tensors have the same bytes: by their checksums, if the cuts are the same. Independent."""
        reader = self.reader
        if any(name in self.converted or reader.specs[name].kind == "per-rank" for name in (one, other)):
            first, second = self._load(one), self._load(other)
            return first.shape == second.shape and first.tobytes() == second.tobytes()
        if reader.specs[one].shape != reader.specs[other].shape:
            return False
        entries, others = reader.index[one], reader.index[other]
        cuts, other_cuts = ([(e.item.extent, e.item.start, e.item.stop) for e in found] for found in (entries, others))
        if cuts == other_cuts:
            return [e.crcs for e in entries] == [e.crcs for e in others]
        boxes = _boxes(reader.specs[one])
        return all(reader.load(one, box).tobytes() == reader.load(other, box).tobytes() for box in boxes)

    def _load(self, name: str) -> Array:
        if name in self.converted:
            return self.converted[name]
        if self.reader.specs[name].kind == "per-rank":
            return self.reader.load_rank(name, self.rank or 0)
        return self.reader.load(name)

    def is_own(self, tree: StateTree, name: str) -> bool:
        """Return True for a tensor that each rank has for itself, and that is not restored on this number of ranks."""
        spec = tree.tensors[name].declaration.spec
        return self.rank is None and spec.kind == "per-rank" and not spec.is_for_any_ranks


# -- one object under two names ----------------------------------------------------------------------


def repeated_objects(tree: StateTree, names: Collection[str], values: RestoredValues) -> list[Problem]:
    """Return what would be put into one object under two names, and is not equal. Independent.

    Parameters
    ----------
    tree : StateTree
        The state.
    names : collection of str
        What is restored: tensors and JSON values.
    values : RestoredValues
        The values.
    """
    if not tree.repeated:
        return []
    problems: dict[str, Problem] = {}
    known, ordered = {*names}, sorted(names)

    def parts_of(name: str) -> list[str]:
        is_replaced = isinstance(values.objects.get(name), list)  # as a whole, where the state has it
        return [*([name] if name in known and not is_replaced else []), *names_below(name, ordered)]

    for group in tree.repeated:
        first_of: dict[str, str] = {}
        for name in group:
            for each in parts_of(name):
                first = first_of.setdefault(each[len(name) :], each)
                if first != each and each not in problems and not _are_equal(tree, first, each, values):
                    problems[each] = _problem(each, first)
        for part, first in first_of.items():  # what the object has under one name must be there under all
            absent = (name + part for name in group if name + part not in known)
            lacking = next((each for each in absent if each not in tree.tensors and each not in tree.objects), None)
            if lacking is not None:
                problems.setdefault(first, _problem(first, lacking))
    return list(problems.values())


def _problem(name: str, other: str) -> Problem:
    return Problem(repr(name), f"has the memory of {other!r} in the state and {OTHER_VALUE}")


def _are_equal(tree: StateTree, one: str, other: str, values: RestoredValues) -> bool:
    if one in values.objects or other in values.objects:
        return repr(values.objects.get(one)) == repr(values.objects.get(other))
    return values.is_own(tree, one) or values.is_own(tree, other) or values.are_same(one, other)


# -- one memory for two tensors ----------------------------------------------------------------------


def separate_aliases(tree: StateTree, names: Sequence[str], values: RestoredValues) -> tuple[StateTree, list[Problem]]:
    """Return the tree with memory for every value, and the tensors that cannot have their own. Independent.

    Parameters
    ----------
    tree : StateTree
        The state.
    names : sequence of str
        The tensors that are restored, but for the converted ones.
    values : RestoredValues
        The values.
    """
    reader, converted = values.reader, values.converted
    if _have_own_memory([tree.tensors[name].source for name in (*names, *converted)]):
        return tree, []
    leaves: dict[str, TensorLeaf] = {}
    problems = []
    for first, name in _conflicts(tree, (*names, *converted), values):
        leaf = tree.fresh[name]() if name in tree.fresh else None
        if leaf is None:
            problems.append(_problem(name, first))
        else:
            leaves[name] = leaf
    if leaves:
        tree = replace(tree, tensors={**tree.tensors, **leaves})
    unfit = {problem.loc for problem in problems}
    arrays = _arrays(tree, [name for name in names if repr(name) not in unfit])
    for group in _overlapping(arrays):
        own = [leaf for name in group if isinstance(leaf := tree.tensors[name], PerRankArrayLeaf)]
        for leaf in own:
            leaf.is_in_place = False
        others = {name: arrays[name] for name in group if tree.tensors[name] not in own}
        if len(others) > 1:
            problems += _overwritten(others, tree, reader)
    return tree, problems


def _conflicts(tree: StateTree, names: Sequence[str], values: RestoredValues) -> Iterator[tuple[str, str]]:
    """Yield pairs of names with one memory and two values, first the one that keeps the memory. Independent."""
    groups: dict[Hashable, list[str]] = defaultdict(list)
    for name in names:
        leaf = tree.tensors[name]
        place = None if values.is_own(tree, name) else leaf.place()
        if place is not None:
            groups[place].append(name)
    for group in groups.values():
        first, *others = sorted(group, key=lambda name: name in tree.fresh)
        yield from ((first, name) for name in others if not values.are_same(first, name))


def _boxes(spec: TensorSpec) -> Iterator[Extent]:
    """Yield boxes that tile a tensor that is not empty, of about `_BOX_BYTES` each. Pure."""
    n_rows, *rest = spec.shape or (1,)
    step = max(1, n_rows * _BOX_BYTES // spec.nbytes)
    for start in range(0, n_rows, step):
        offset, shape = (start, *(0 for _ in rest)), (min(step, n_rows - start), *rest)
        yield Extent(offset, shape) if spec.shape else Extent.whole(())


# -- arrays that share a part of their memory ------------------------------------------------------


def _arrays(tree: StateTree, names: Sequence[str]) -> dict[str, Array]:
    """Return the arrays that are restored in place, one for each memory; none if no two can overlap. Independent."""
    leaves = {name: tree.tensors[name] for name in names}
    found = {name: memory for name, leaf in leaves.items() if (memory := leaf.memory()) is not None}
    if _have_own_memory(list(found.values())):
        return {}
    arrays: dict[str, Array] = {}
    places: set[Hashable] = set()
    for name, array in found.items():
        place = leaves[name].place()
        if array.flags.writeable and array.size and (place is None or place not in places):
            arrays[name] = array
        places.add(place)
    return arrays


def _have_own_memory(sources: Sequence[object]) -> bool:
    """Return True if these are arrays of which each has its own memory. Independent."""
    n_different = len({id(source) for source in sources})
    return n_different == len(sources) and all(isinstance(s, np.ndarray) and s.flags.owndata for s in sources)


def _overlapping(arrays: Mapping[str, Array]) -> Iterator[list[str]]:
    """Yield the names of arrays whose memory may overlap, two or more at a time. Pure."""
    group: list[str] = []
    end = 0
    for (low, high), name in sorted((_bounds(array), name) for name, array in arrays.items()):
        if low >= end:
            if len(group) > 1:
                yield group
            group = []
        group.append(name)
        end = max(end, high)
    if len(group) > 1:
        yield group


def _bounds(array: Array) -> tuple[int, int]:
    """Return the addresses of the first byte of an array, and after the last. Pure."""
    first = array.ctypes.data
    if array.flags.c_contiguous:
        return first, first + array.nbytes
    spans = [(n - 1) * stride for n, stride in zip(array.shape, array.strides, strict=True)]
    return first + sum(min(0, span) for span in spans), first + sum(max(0, span) for span in spans) + array.itemsize


def _overwritten(group: Mapping[str, Array], tree: StateTree, reader: StepReader) -> Iterator[Problem]:
    """Yield arrays that would not have their values, when all of a group are restored into memory like theirs."""
    start, stop = min(_bounds(a)[0] for a in group.values()), max(_bounds(a)[1] for a in group.values())
    room = np.zeros(stop - start, np.uint8)
    restored: list[tuple[str, Array, Array]] = []
    for name, own in group.items():
        view: Array = np.ndarray(own.shape, own.dtype, room, own.ctypes.data - start, own.strides)
        view[...] = value = reader.load(name, tree.tensors[name].declaration.extent).astype(own.dtype)
        restored.append((name, view, value))
    for name, view, value in restored:
        if view.tobytes() != value.tobytes():
            others = [each for each in group if each != name and np.may_share_memory(group[each], group[name])]
            if not others:  # one element of its own for many, which its leaf refuses
                continue
            other = others[0]
            text = f"has the memory of {other!r}, or a part of it, in the state and {OTHER_VALUE}"
            yield Problem(repr(name), text)
