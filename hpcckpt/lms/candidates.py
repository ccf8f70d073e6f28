"""Which tensors are swapped, and for which of their consumers: by distance. Pure.

A tensor of rank 2 or more goes if a consumer is more than `swapout_threshold` levels behind its producer; consumers
whose levels are near each other take it from one swap-in.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hpcckpt.lms.filters import is_excluded_type, puts_out_references
from hpcckpt.lms.graph import Slot, Use
from hpcckpt.lms.levels import Levels
from hpcckpt.lms.scene import Scene


@dataclass(frozen=True, slots=True)
class Swap:
    """A tensor that goes, and the groups of slots that it comes back for, the earliest consumer of each first."""

    tensor: Use
    groups: tuple[tuple[Slot, ...], ...]


@dataclass(frozen=True, slots=True)
class Reach:
    """A tensor that may go, and its consumers that may be made to wait for it: ``(level, slot)``, in order."""

    tensor: Use
    level: int
    consumers: tuple[tuple[int, Slot], ...]

    @property
    def longest(self) -> int:
        """The distance of the consumer that is farthest."""
        return self.consumers[-1][0] - self.level


def reaches(scene: Scene, levels: Levels) -> tuple[Reach, ...]:
    """Return all tensors that any threshold may swap, in the order of their levels and names."""
    found = []
    for tensor, slots in scene.aliases.holders.items():
        if _may_go(scene, levels, tensor):
            consumers = sorted((levels[slot.op], slot) for slot in slots if _may_take(scene, levels, slot.op))
            if consumers:
                found.append(Reach(tensor, levels[tensor.op], tuple(consumers)))
    return tuple(sorted(found, key=lambda each: (each.level, each.tensor)))


def swaps(found: tuple[Reach, ...], threshold: int, groupby: int) -> Iterator[Swap]:
    """Choose by threshold, and group."""
    for each in found:
        far = [(level, slot) for level, slot in each.consumers if level - each.level > threshold]
        if far:
            yield Swap(each.tensor, tuple(_groups(far, groupby)))


def _may_go(scene: Scene, levels: Levels, tensor: Use) -> bool:
    op, output = scene.graph.ops[tensor.op], scene.graph.output(tensor)
    root = scene.graph.ops[scene.aliases.root(tensor).op]
    return (
        levels[op.name] >= 0
        and not op.frame
        and scene.runs_on_device(op.name)
        and scene.has_size(tensor)
        and len(output.shape or ()) >= 2
        and scene.nbytes(tensor) >= scene.min_bytes
        and not puts_out_references(op)
        and not puts_out_references(root)
        and scene.filters.takes_source(op)
    )


def _may_take(scene: Scene, levels: Levels, name: str) -> bool:
    op = scene.graph.ops[name]
    is_open = levels[name] >= 0 and not op.frame and scene.runs_on_device(name)
    return is_open and not is_excluded_type(op) and scene.filters.takes_consumer(op)


def _groups(far: list[tuple[int, Slot]], groupby: int) -> Iterator[tuple[Slot, ...]]:
    """Put neighbours together that are at most `groupby` levels apart; one op is never in two groups."""
    group: list[Slot] = []
    last = 0
    for level, slot in far:
        is_near = bool(group) and ((groupby > 0 and level - last <= groupby) or slot.op == group[-1].op)
        if group and not is_near:
            yield tuple(group)
            group = []
        group.append(slot)
        last = level
    if group:
        yield tuple(group)
