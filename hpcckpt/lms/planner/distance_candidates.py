"""Which tensors are swapped, and for which of their consumers: by distance. Pure.

A tensor of rank 2 or more is swapped if a consumer is more than `swapout_threshold` levels after its producer;
consumers on nearby levels share one swap-in.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hpcckpt.lms.graph.filters import is_excluded_type, puts_out_references
from hpcckpt.lms.graph.graph import InputSlot, Use
from hpcckpt.lms.graph.graph_context import GraphContext
from hpcckpt.lms.graph.levels import Levels


@dataclass(frozen=True, slots=True)
class SwapCandidate:
    """A tensor to swap, and the groups of consumers that share a swap-in, the earliest consumer of each first."""

    tensor: Use
    groups: tuple[tuple[InputSlot, ...], ...]


@dataclass(frozen=True, slots=True)
class Reach:
    """A tensor that may be swapped, and its consumers that may wait for a swap-in: ``(level, slot)``, in order."""

    tensor: Use
    level: int
    consumers: tuple[tuple[int, InputSlot], ...]

    @property
    def longest(self) -> int:
        """The distance of the farthest consumer."""
        return self.consumers[-1][0] - self.level


def reaches(context: GraphContext, levels: Levels) -> tuple[Reach, ...]:
    """Return all tensors that any threshold may swap, in the order of their levels and names."""
    found = []
    for tensor, slots in context.aliases.holders.items():
        if _may_go(context, levels, tensor):
            consumers = sorted((levels[slot.op], slot) for slot in slots if _may_take(context, levels, slot.op))
            if consumers:
                found.append(Reach(tensor, levels[tensor.op], tuple(consumers)))
    return tuple(sorted(found, key=lambda each: (each.level, each.tensor)))


def swaps(found: tuple[Reach, ...], threshold: int, groupby: int) -> Iterator[SwapCandidate]:
    """Choose by threshold, and group."""
    for each in found:
        far = [(level, slot) for level, slot in each.consumers if level - each.level > threshold]
        if far:
            yield SwapCandidate(each.tensor, tuple(_groups(far, groupby)))


def _may_go(context: GraphContext, levels: Levels, tensor: Use) -> bool:
    op, output = context.graph.ops[tensor.op], context.graph.output(tensor)
    root = context.graph.ops[context.aliases.root(tensor).op]
    return (
        levels[op.name] >= 0
        and not op.frame
        and context.runs_on_device(op.name)
        and context.has_size(tensor)
        and len(output.shape or ()) >= 2
        and context.nbytes(tensor) >= context.min_bytes
        and not puts_out_references(op)
        and not puts_out_references(root)
        and context.filters.takes_source(op)
    )


def _may_take(context: GraphContext, levels: Levels, name: str) -> bool:
    op = context.graph.ops[name]
    is_open = levels[name] >= 0 and not op.frame and context.runs_on_device(name)
    return is_open and not is_excluded_type(op) and context.filters.takes_consumer(op)


def _groups(far: list[tuple[int, InputSlot]], groupby: int) -> Iterator[tuple[InputSlot, ...]]:
    """Put neighbours together that are at most `groupby` levels apart; one op is never in two groups."""
    group: list[InputSlot] = []
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
