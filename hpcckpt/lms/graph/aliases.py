"""Tensors that share memory: the outputs of Identity, Reshape and similar ops. Pure.

A buffer is freed only when every consumer of every alias is done, so planners work on buffers, not on tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property

from hpcckpt.lms.graph.graph import Graph, InputSlot, Op, Use
from hpcckpt.lms.graph.levels import SWITCH

SAME_VIEW = frozenset({"Identity", "IdentityN", "Snapshot", "RefIdentity"})
"""Consumers may take the input of such an op instead of its output."""
OTHER_VIEW = SWITCH | {
    "Reshape", "Squeeze", "ExpandDims", "Bitcast",
    "StopGradient", "PreventGradient", "CheckNumerics",  # the same values; but gradients and checks depend on the op
}  # fmt: skip
_ANY_VIEW = SAME_VIEW | OTHER_VIEW


class Aliases:
    """Which tensors of a graph share memory.

    Parameters
    ----------
    graph : Graph
        The graph.
    is_device_op : callable, optional
        Returns True for ops on the accelerator: between it and the host, tensors are copied, not aliased.
    """

    def __init__(self, graph: Graph, is_device_op: Callable[[Op], bool] = lambda _: True) -> None:
        self._ops: Mapping[str, Op] = graph.ops
        self._consumers = graph.consumers
        self._is_device_op = is_device_op
        self._roots: dict[Use, Use] = {}

    def root(self, use: Use) -> Use:
        """Return the tensor that was first in this memory."""
        passed = []
        while use not in self._roots:
            behind = self._behind(use, _ANY_VIEW)
            if behind is None:
                self._roots[use] = use
            else:
                passed.append(use)
                use = behind
        self._roots.update(dict.fromkeys(passed, self._roots[use]))
        return self._roots[use]

    def view(self, use: Use) -> Use:
        """Return the first tensor that may be taken instead of this one: the same values in the same shape.

        An Identity with control inputs is there to be waited for, and is not replaced.
        """
        while (behind := self._behind(use, SAME_VIEW)) is not None and not self._ops[use.op].controls:
            use = behind
        return use

    def is_passed_by(self, name: str) -> bool:
        """Return True if consumers of this op may use its input instead."""
        op = self._ops[name]
        return op.type in SAME_VIEW and self.view(Use(name, 0)).op != name

    @cached_property
    def holders(self) -> Mapping[Use, tuple[InputSlot, ...]]:
        """The consumers of each view, directly or through ops that are bypassed."""
        found: dict[Use, list[InputSlot]] = {}
        for use, slots in self._consumers.items():
            for slot in slots:
                if not self.is_passed_by(slot.op):
                    found.setdefault(self.view(use), []).append(slot)
        return {use: tuple(sorted(slots)) for use, slots in sorted(found.items())}

    def _behind(self, use: Use, types: frozenset[str]) -> Use | None:
        op = self._ops[use.op]
        if op.type not in types or not op.inputs:
            return None
        source = op.inputs[use.number if op.type == "IdentityN" else 0]
        producer = self._ops[source.op]
        is_same_place = self._is_device_op(op) == self._is_device_op(producer) and op.frame == producer.frame
        return source if is_same_place else None
