"""What the tests of the native part share: a tier that is set and left as it was found, and plans written by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from hpcckpt.lms.graph.graph import Graph, InputSlot, Use
from hpcckpt.lms.planner.plan import Copy, Plan, SwapIn, SwapOut
from hpcckpt.lms.runtime import native_engine


def away_and_back(tensor: Any) -> Any:
    """Swap a tensor out and in, eagerly."""
    ops = native_engine.load()
    return ops.hpcckpt_swap_in(ops.hpcckpt_swap_out(tensor), T=tensor.dtype)


def is_backward(op: str) -> bool:
    return "gradient" in op.lower()


def far_uses(graph: Graph, least: int) -> dict[Use, tuple[InputSlot, ...]]:
    """Return large tensors of the forward part that the backward part takes, outside of loops."""
    found = {}
    for op in graph.ops.values():
        if (
            op.frame
            or is_backward(op.name)
            or op.type in ("ReadVariableOp", "_Arg", "Const", "Identity", "VarHandleOp")
        ):
            continue
        for number, output in enumerate(op.outputs):
            slots = graph.consumers.get(Use(op.name, number), ())
            far = tuple(slot for slot in slots if is_backward(slot.op) and not graph.ops[slot.op].frame)
            if far and output.dtype in ("float", "half") and output.nbytes(4) >= least:
                found[Use(op.name, number)] = far
    return found


def swap_all(graph: Graph, least: int = 256) -> Plan:
    """Swap all that can be: one swap-in for each tensor, no edges."""
    outs, backs = [], []
    for number, (use, far) in enumerate(sorted(far_uses(graph, least).items())):
        outs.append(SwapOut(f"lms/swapout_{number}", use, graph.output(use).nbytes(4)))
        backs.append(SwapIn(f"lms/swapin_{number}", f"lms/swapout_{number}", far))
    return Plan(tuple(outs), tuple(backs))


def compute_again(graph: Graph, type_: str) -> Plan:
    """Compute ops of a type once more for the backward part, from the inputs that they had."""
    copies = []
    for use, far in sorted(far_uses(graph, 1).items()):
        op = graph.ops[use.op]
        if op.type == type_:
            consumers = tuple((use.number, slot) for slot in far)
            copies.append(Copy(f"lms/again_{len(copies)}", op.name, op.inputs, consumers))
    return Plan(copies=tuple(copies))


class Planned:
    """The pass armed for a name, with what it was asked."""

    def __init__(self, match: str, planner: Callable[[Graph], Plan | None], **more: Any) -> None:
        self.match, self.planner, self.more = match, planner, more
        self.asked: list[native_engine.FunctionInfo] = []
        self.graphs: list[Graph] = []
        self.plans: list[Plan | None] = []

    def __enter__(self) -> Planned:
        native_engine.arm(self.match, self._plan, **self.more)
        return self

    def __exit__(self, *_: object) -> None:
        native_engine.disarm()

    def _plan(self, graph: Graph, info: native_engine.FunctionInfo) -> Plan | None:
        self.asked.append(info)
        self.graphs.append(graph)
        self.plans.append(self.planner(graph))
        return self.plans[-1]


def same(first: Any, second: Any) -> bool:
    """Return whether two structures of tensors are the same, bit for bit."""
    ours, theirs = tf.nest.flatten(first), tf.nest.flatten(second)
    return len(ours) == len(theirs) and all(
        tf.convert_to_tensor(a).numpy().tobytes() == tf.convert_to_tensor(b).numpy().tobytes()
        for a, b in zip(ours, theirs, strict=True)
    )
