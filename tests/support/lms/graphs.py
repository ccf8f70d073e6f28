"""Graphs made by hand, for the tests of the planners: ``graph(op("a"), op("b", "a"), op("c", "a", "^b"))``."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import strategies as st

from hpcckpt.lms.graph.graph import Graph, Op, Output, Use
from hpcckpt.lms.graph.graph_context import GraphContext
from hpcckpt.lms.planner.distance_planner import plan_by_distance
from hpcckpt.lms.planner.edited_graph import check
from hpcckpt.lms.planner.plan import Plan
from hpcckpt.lms.settings import Parameters

SHAPE = (4, 8)


def op(
    name: str, *inputs: str, kind: str = "Relu", shape: Any = SHAPE, dtype: str = "float", n: int = 1, **more: Any
) -> Op:
    """Make an op of names: ``a`` is the first output of `a`, ``a:1`` the second, ``^a`` waits for it."""
    uses = tuple(Use.of(each if ":" in each else f"{each}:0") for each in inputs if not each.startswith("^"))
    controls = tuple(sorted(each[1:] for each in inputs if each.startswith("^")))
    return Op(name, kind, inputs=uses, controls=controls, outputs=(Output(dtype, shape),) * n, **more)


def graph(*ops: Op) -> Graph:
    """Make a graph."""
    return Graph.of(ops)


def chain(n: int, *more: Op, shape: Any = SHAPE) -> Graph:
    """Make ``l00 -> l01 -> ...``, and what else hangs on it; the level of ``l07`` is 7."""
    first = op("l00", shape=shape)
    rest = [op(f"l{index:02}", f"l{index - 1:02}", shape=shape) for index in range(1, n)]
    return graph(first, *rest, *more)


def hourglass(depth: int, shape: Any = SHAPE) -> Graph:
    """Make a step of training: `depth` layers ``f00...``, back through them ``b..``, each with a layer's output."""
    ops = [op("f00", shape=shape), *(op(f"f{index:02}", f"f{index - 1:02}", shape=shape) for index in range(1, depth))]
    ops.append(op(f"b{depth - 1:02}", f"f{depth - 1:02}", shape=shape))
    back = range(depth - 2, -1, -1)
    return graph(*ops, *(op(f"b{i:02}", f"b{i + 1:02}", f"f{i:02}", shape=shape) for i in back))


# -- plans of them


def planned(
    built: Graph, threshold: int = 3, groupby: int = 0, ahead: int = 1, sync: int = 0, **context: object
) -> Plan:
    """Plan, and see that the plan fits."""
    plan = plan_by_distance(GraphContext(built, **context), Parameters(threshold, groupby, ahead, sync))  # type: ignore[arg-type]
    check(built, plan)
    return plan


def gone(plan: Plan) -> list[str]:
    return [str(out.tensor) for out in plan.swap_outs]


def groups(plan: Plan) -> list[list[str]]:
    return [[slot.op for slot in back.consumers] for back in plan.swap_ins]


def far(*more: Op, source: Op | None = None, level: int = 7) -> Graph:
    """Make a chain whose op `s`, on level 1, is needed again on `level` by `c`."""
    first = source or op("s", "l00")
    return chain(12, first, op("c", "s", f"l{level - 1:02}"), *more)


# -- drawn at random


def tangle(n: int, seed: int) -> Graph:
    """Make a graph of many ops on each level, always the same for a seed."""
    chance = random.Random(seed)
    ops = [op("op000")]
    for index in range(1, n):
        before = [each.name for each in ops]
        kind = chance.choice(KINDS[:6])
        ops.append(op(f"op{index:03}", *chance.choices(before[-20:], k=2), chance.choice(before), kind=kind))
    return graph(*ops)


KINDS = ("Relu", "Relu", "Relu", "Conv2D", "Identity", "Reshape", "Const", "VariableV2", "HorovodAllreduce", "AddN")
SHAPES: tuple[Any, ...] = ((4, 8), (16, 16), (2, 2, 2), (8,), (), None)


@st.composite
def random_graphs(draw: st.DrawFn, most: int = 30) -> Graph:
    """Draw graphs without cycles: long ones with short cuts, conditions, aliases, collectives."""
    ops: list[Op] = []
    for index in range(draw(st.integers(2, most))):
        ops.append(_drawn(draw, ops, f"op{index:02}"))
        if draw(st.integers(0, 11)) == 0:
            ops += _condition(ops[-1].name, f"op{index:02}")
    return graph(*draw(st.permutations(ops)))


def _drawn(draw: st.DrawFn, ops: list[Op], name: str) -> Op:
    kind = draw(st.sampled_from(KINDS))
    before = [each.name for each in ops]
    n_inputs = 0 if kind in ("Const", "VariableV2") or not ops else draw(st.integers(0 if kind == "Relu" else 1, 3))
    last = [before[-1]] if n_inputs and draw(st.booleans()) else []
    inputs = last + [draw(st.sampled_from(before)) for _ in range(n_inputs - len(last))]
    controls = [f"^{draw(st.sampled_from(before))}"] if ops and draw(st.integers(0, 5)) == 0 else []
    device = draw(st.sampled_from(("", "", "", "/cpu:0")))
    shape = draw(st.sampled_from(SHAPES))
    if kind in ("Identity", "Reshape") and inputs:
        shape = next(each for each in ops if each.name == inputs[0]).outputs[0].shape
    return op(name, *inputs, *controls, kind=kind, shape=shape, device=device)


def _condition(source: str, name: str) -> list[Op]:
    switch = op(f"{name}/Switch", source, source, kind="Switch", n=2)
    branch = [op(f"{name}/yes", f"{name}/Switch:1"), op(f"{name}/yes2", f"{name}/yes")]
    return [switch, *branch, op(f"{name}/Merge", f"{name}/Switch:0", f"{name}/yes2", kind="Merge", n=2)]
