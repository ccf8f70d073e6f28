"""Tensors of a state that have the same memory now, and other values each in the step.

``best = model.state_dict()`` shares the memory of the model until it is copied. Of two values only one can be restored
into one memory. Equal values, as those of tied weights, can.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace

from hpcckpt.core.tensors import Extent, TensorSpec
from hpcckpt.errors import Problem
from hpcckpt.restoring.reader import StepReader
from hpcckpt.state.leaves import StateTree, TensorLeaf

_BOX_BYTES = 64 << 20
"""How much of each of two tensors is compared at once."""


def separate_aliases(tree: StateTree, names: Sequence[str], reader: StepReader) -> tuple[StateTree, list[Problem]]:
    """Return the tree with memory for every value, and the tensors that cannot have their own. Independent.

    Parameters
    ----------
    tree : StateTree
        The state.
    names : sequence of str
        The tensors that are restored.
    reader : StepReader
        The step; tensors with the same memory are read if their checksums cannot be compared.
    """
    leaves: dict[str, TensorLeaf] = {}
    problems = []
    for first, name in _conflicts(tree, names, reader):
        leaf = tree.fresh[name]() if name in tree.fresh else None
        if leaf is None:
            text = f"has the memory of {first!r} in the state and another value in the checkpoint"
            problems.append(Problem(repr(name), text))
        else:
            leaves[name] = leaf
    if leaves:
        tree = replace(tree, tensors={**tree.tensors, **leaves})
    return tree, problems


def _conflicts(tree: StateTree, names: Sequence[str], reader: StepReader) -> Iterator[tuple[str, str]]:
    """Yield pairs of names with one memory and two values, first the one that keeps the memory. Independent."""
    groups: dict[Hashable, list[str]] = defaultdict(list)
    for name in names:
        leaf = tree.tensors[name]
        place = leaf.place() if leaf.declaration.spec.kind != "per-rank" else None
        if place is not None:
            groups[place].append(name)
    for group in groups.values():
        first, *others = sorted(group, key=lambda name: name in tree.fresh)
        yield from ((first, name) for name in others if not _is_same(first, name, reader))


def _is_same(one: str, other: str, reader: StepReader) -> bool:
    """Return True if two tensors of a step have the same bytes: by their checksums, if the cuts are the same."""
    entries, others = reader.index[one], reader.index[other]
    cuts, other_cuts = ([(e.item.extent, e.item.start, e.item.stop) for e in found] for found in (entries, others))
    if cuts == other_cuts:
        return [e.crcs for e in entries] == [e.crcs for e in others]
    boxes = _boxes(reader.specs[one])
    return all(reader.load(one, box).tobytes() == reader.load(other, box).tobytes() for box in boxes)


def _boxes(spec: TensorSpec) -> Iterator[Extent]:
    """Yield boxes that tile a tensor that is not empty, of about `_BOX_BYTES` each. Pure."""
    n_rows, *rest = spec.shape or (1,)
    step = max(1, n_rows * _BOX_BYTES // spec.nbytes)
    for start in range(0, n_rows, step):
        offset, shape = (start, *(0 for _ in rest)), (min(step, n_rows - start), *rest)
        yield Extent(offset, shape) if spec.shape else Extent.whole(())
