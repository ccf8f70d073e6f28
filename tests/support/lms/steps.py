"""Steps of training made up for the tests of the cost planner, and executions of a planned graph by chance."""

from __future__ import annotations

import random

from hpcckpt.lms.graph.aliases import Aliases
from hpcckpt.lms.graph.graph import Graph, Op, Use
from hpcckpt.lms.graph.op_traits import IN_PLACE, is_resident
from hpcckpt.lms.planner.edited_graph import edited
from hpcckpt.lms.planner.op_schedule import Waits
from hpcckpt.lms.planner.plan import Plan
from tests.support.lms.graphs import graph, op

MIB = 1 << 20
WIDE = (512, 512)  # a MiB of float
SMALL = (8,)


def layers(depth: int, *, norm: bool = False) -> Graph:
    """Make a step: products with weights, gradients of both, updates; with `norm`, normalization in each layer.

    All tensors have one MiB but the weights' gradients, which have a quarter.
    """
    ops = [op("x", kind="IteratorGetNext", shape=WIDE)]
    last = "x"
    for index in range(depth):
        ops += _forward(f"{index:02}", last, norm=norm)
        last = f"z{index:02}"
    ops.append(op("loss", last, kind="SoftmaxGrad", shape=WIDE))
    grad = "loss"
    for index in reversed(range(depth)):
        before = f"z{index - 1:02}" if index else "x"
        ops += _backward(f"{index:02}", grad, before, norm=norm)
        grad = f"g{index:02}"
    return graph(*ops)


def _forward(layer: str, last: str, *, norm: bool) -> list[Op]:
    ops = [
        op(f"v{layer}", kind="VarHandleOp", dtype="resource", shape=()),
        op(f"w{layer}", f"v{layer}", kind="ReadVariableOp", shape=(512, 128)),
        op(f"h{layer}", last, f"w{layer}", kind="Conv2D", shape=WIDE),
    ]
    if not norm:
        return [*ops, op(f"z{layer}", f"h{layer}", kind="Relu", shape=WIDE)]
    ops.append(op(f"n{layer}", f"h{layer}", kind="FusedBatchNormV3", shape=WIDE))
    return [*ops, op(f"z{layer}", f"n{layer}", kind="Relu", shape=WIDE)]


def _backward(layer: str, grad: str, before: str, *, norm: bool) -> list[Op]:
    ops = [op(f"r{layer}", grad, f"z{layer}", kind="ReluGrad", shape=WIDE)]
    at = f"r{layer}"
    if norm:
        ops.append(op(f"b{layer}", at, f"h{layer}", kind="FusedBatchNormGradV3", shape=WIDE))
        at = f"b{layer}"
    return [
        *ops,
        op(f"d{layer}", before, at, kind="MatMul", shape=(512, 128)),
        op(f"u{layer}", f"v{layer}", f"d{layer}", kind="ResourceApplyGradientDescent", n=0, is_stateful=True),
        op(f"g{layer}", at, f"w{layer}", kind="MatMul", shape=WIDE),
    ]


def peak_of_an_execution(g: Graph, plan: Plan, chance: random.Random) -> int:
    """Run a planned graph in an order that only its edges bind, and return the most memory it takes.

    Counted by itself, not by what the planner counts with; a buffer's memory is taken when its op begins.
    """
    planned = edited(g, plan)
    waits, aliases = Waits(planned), Aliases(planned)
    missing = {name: len(firsts) for name, firsts in waits.firsts.items()}
    ready = sorted(name for name, n in missing.items() if n == 0)
    holders: dict[Use, set[str]] = {}
    for each in planned.ops.values():
        for use in each.inputs:
            holders.setdefault(aliases.root(use), set()).add(each.name)
    now = peak = 0
    while ready:
        name = ready.pop(chance.randrange(len(ready)))
        made = [use for n in range(len(planned.ops[name].outputs)) if _counts(planned, aliases, use := Use(name, n))]
        over = _written_over(planned, aliases, planned.ops[name], holders)
        now += sum(planned.output(use).nbytes() for use in made) - (planned.output(over).nbytes() if over else 0)
        peak = max(peak, now)
        for use in {aliases.root(each) for each in planned.ops[name].inputs} | set(made):
            holders.setdefault(use, set()).discard(name)
            if not holders[use] and use != over and _counts(planned, aliases, use):
                now -= planned.output(use).nbytes()
        for then in waits.thens[name]:
            missing[then] -= 1
            if missing[then] == 0:
                ready.append(then)
    return peak


def _written_over(g: Graph, aliases: Aliases, each: Op, holders: dict[Use, set[str]]) -> Use | None:
    """Return what TensorFlow would write an op's output over: it alone holds it at this very time."""
    roots = [aliases.root(use) for use in each.inputs]
    for number in IN_PLACE.get(each.type, ()):
        if number >= len(roots) or roots.count(root := roots[number]) > 1 or not _counts(g, aliases, root):
            continue
        if holders[root] == {each.name} and g.output(root).nbytes() == each.outputs[0].nbytes():
            return root
    return None


def _counts(g: Graph, aliases: Aliases, use: Use) -> bool:
    return aliases.root(use) == use and not is_resident(g.ops[use.op])
