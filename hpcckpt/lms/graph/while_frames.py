"""Which while loop each op belongs to, determined from the Enter and Exit ops around it. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from hpcckpt.lms.graph.graph import Op
from hpcckpt.lms.graph.levels import ENTER, EXIT


def frames(ops: Mapping[str, Op], entered: Mapping[str, str]) -> dict[str, str]:
    """Return the frame of each op, ``outer/inner`` for one inside another, empty outside of all loops.

    Enter and Exit belong to the loop that they begin and end.

    Parameters
    ----------
    ops : mapping of str to Op
        All ops.
    entered : mapping of str to str
        The name of the frame of each Enter.
    """
    found = dict.fromkeys(ops, "")
    if not entered:
        return found
    thens: dict[str, list[str]] = {}
    for op in ops.values():
        for first in sorted({*(use.op for use in op.inputs), *op.controls}):
            thens.setdefault(first, []).append(op.name)
    todo = deque(sorted(entered))
    while todo:
        op = ops[todo.popleft()]
        frame = _frame(op, ops, entered, found)
        if frame.count("\0") >= found[op.name].count("\0") and frame != found[op.name]:
            found[op.name] = frame
            todo.extend(thens.get(op.name, ()))
    return {name: frame.strip("\0").replace("\0", "/") for name, frame in found.items()}


def _frame(op: Op, ops: Mapping[str, Op], entered: Mapping[str, str], found: Mapping[str, str]) -> str:
    firsts = {*(use.op for use in op.inputs), *op.controls}
    deepest = max((_outside(ops[first], found[first]) for first in firsts), key=_depth, default="")
    return f"{deepest}\0{entered[op.name]}" if op.type in ENTER else deepest


def _depth(frame: str) -> tuple[int, str]:
    return frame.count("\0"), frame


def _outside(op: Op, frame: str) -> str:
    return frame.rpartition("\0")[0] if op.type in EXIT else frame
