"""Which ops of a graph run at all, and which run only sometimes. Pure."""

from __future__ import annotations

from hpcckpt.lms.graph.filters import VARIABLES
from hpcckpt.lms.graph.graph import Graph, Op, Use
from hpcckpt.lms.graph.levels import ENTER, EXIT, MERGE, SWITCH, Levels, loop_ops

LEARNING_PHASE = "keras_learning_phase"
_ASSIGNS = frozenset({"Assign", "AssignVariableOp"})
_SAVES = frozenset({"SaveV2", "SaveSlices", "RestoreV2", "RestoreSlice", "MergeV2Checkpoints", "ShardedFilename"})
_NO_SIGN_OF_LIFE = VARIABLES | {"Const", "HostConst"}


def inactive_ops(graph: Graph, levels: Levels, *, is_training: bool = True, keras: bool = False) -> frozenset[str]:
    """Return the ops that do not run in this mode, or are ignored by planners.

    Batch normalizations of the other mode; what is inside while loops; with `keras`, the branch of
    ``keras_learning_phase`` that is not taken; ops with inputs from such ops only; and ops that initialize, save or
    restore variables, which are not part of a step.
    """
    loops = loop_ops(graph)
    found = {name for name in loops if graph.ops[name].type not in ENTER | EXIT}
    found |= {name for name, op in graph.ops.items() if _is_of_other_mode(op, is_training)}
    if keras:
        found |= _dead_branch(graph, is_training)
    spared = loops | {name for name, op in graph.ops.items() if op.type in MERGE | SWITCH}
    for name in levels.in_order():
        if name not in spared and _has_only_inactive(graph, graph.ops[name], found):
            found.add(name)
    return frozenset(found) | idle_ops(graph, levels)


def is_initializer(graph: Graph, op: Op) -> bool:
    """Return True if an op gives a variable its first value; TensorFlow names it after the variable."""
    if op.type not in _ASSIGNS or not op.inputs:
        return False
    variable = graph.ops[op.inputs[0].op]
    return variable.type in VARIABLES and op.name == f"{variable.name}/Assign"


def idle_ops(graph: Graph, levels: Levels) -> frozenset[str]:
    """Return the ops that only initialize, save or restore variables."""
    found = {op.name for op in graph.ops.values() if op.type in _SAVES or is_initializer(graph, op)}
    found |= {op.name for op in graph.ops.values() if op.type in _ASSIGNS and _is_restoring(graph, op)}
    thens = {name: set(names) for name, names in graph.controlled.items()}
    for use, slots in graph.consumers.items():
        thens.setdefault(use.op, set()).update(slot.op for slot in slots)
    for name in reversed(tuple(levels.in_order())):
        if thens.get(name) and thens[name] <= found:
            found.add(name)
    return frozenset(found)


def _is_restoring(graph: Graph, op: Op) -> bool:
    value = graph.ops[op.inputs[-1].op]
    while value.type == "Identity":
        value = graph.ops[value.inputs[0].op]
    return value.type in _SAVES


def _is_of_other_mode(op: Op, is_training: bool) -> bool:
    return op.type.startswith("FusedBatchNorm") and op.is_training not in (None, is_training)


def _dead_branch(graph: Graph, is_training: bool) -> set[str]:
    dead = 0 if is_training else 1
    switches = [op for op in graph.ops.values() if op.type in SWITCH and _is_learning_phase(graph, op.inputs[1])]
    return {slot.op for op in switches for slot in graph.consumers.get(Use(op.name, dead), ())}


def _is_learning_phase(graph: Graph, use: Use) -> bool:
    op = graph.ops[use.op]
    while op.type == "Identity":
        op = graph.ops[op.inputs[0].op]
    return op.type.startswith("Placeholder") and op.name.rpartition("/")[2] == LEARNING_PHASE


def _has_only_inactive(graph: Graph, op: Op, inactive: set[str]) -> bool:
    live = [use.op for use in op.inputs if graph.ops[use.op].type not in _NO_SIGN_OF_LIFE]
    return bool(live) and all(name in inactive for name in live)


def conditional_ops(graph: Graph, levels: Levels) -> frozenset[str]:
    """Return the ops that run only if a condition holds.

    Whatever waits for one of them is skipped along with it, so no control edge of a plan may begin there.
    """
    loops = loop_ops(graph)
    depth: dict[str, int] = {}
    for name in levels.in_order():
        op = graph.ops[name]
        deepest = max((_depth_behind(graph, use.op, depth, loops) for use in op.inputs), default=0)
        deepest = max(deepest, *(depth.get(each, 0) for each in op.controls), 0)
        is_end = op.type in MERGE and name not in loops
        depth[name] = max(deepest - 1, 0) if is_end else deepest
    return frozenset(name for name, n in depth.items() if n)


def _depth_behind(graph: Graph, producer: str, depth: dict[str, int], loops: frozenset[str]) -> int:
    is_branch = graph.ops[producer].type in SWITCH and producer not in loops
    return depth.get(producer, 0) + is_branch
