"""Applies a plan to a `tf.Graph`, in place, before a session runs it.

1. Each tensor that leaves gets a swap-out, each way back a swap-in: on the CPU the native ops, which copy to the tier;
   on a device a pair of ``tf.identity`` on the host, to and from which TensorFlow copies by itself.
2. Ops that are computed again are copied, attributes and all.
3. Consumers are rerouted, control edges drawn.

``_grappler_do_not_remove`` keeps TensorFlow's optimizer from finding identities needless.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from hpcckpt.errors import CodeError
from hpcckpt.lms.planner.plan import Copy, Plan, Release, SwapIn, SwapOut


class SwapOps(NamedTuple):
    """How a tensor is moved: both make an op by a name and return its output.

    Attributes
    ----------
    out : callable
        Given a tensor and a name.
    back : callable
        Given what `out` returned, a name, and the tensor's dtype.
    release : callable, optional
        Makes the op that gives a tensor's memory back, and returns the op.
    """

    out: Callable[[Any, str], Any]
    back: Callable[[Any, str, Any], Any]
    release: Callable[[Any, str], Any] | None = None


_KEEP = "_grappler_do_not_remove"


def check_editable(graph: Any) -> None:
    """Raise `CodeError` if a graph cannot be edited any more."""
    if graph.finalized:
        raise CodeError(
            "the graph is finalized, so a session has begun: call lms.run(graph) before the session is made, or give "
            "LMS to the hooks of an Estimator or a MonitoredSession"
        )


def is_edited(graph: Any) -> bool:
    """Return whether LMS was here before."""
    return any("lms/swapout" in op.name for op in graph.get_operations())


def apply(graph: Any, plan: Plan, swap: SwapOps) -> list[Any]:
    """Edit a graph, and return the new ops.

    Parameters
    ----------
    graph : tf.Graph
        Not finalized, and the one that the plan was made for.
    plan : Plan
        What to do.
    swap : SwapOps
        How tensors are moved.
    """
    check_editable(graph)
    _check_names(graph, plan)
    with graph.as_default(), graph.name_scope(None), tf.control_dependencies(None):
        moved = {out.name: _swapped_out(graph, out, swap) for out in plan.swap_outs}
        made = [handle.op for _, handle in moved.values()]
        made += [_swapped_in(back, *moved[back.swap_out], swap) for back in plan.swap_ins]
        made += [_copied(graph, copy) for copy in plan.copies]
        made += [_released(graph, each, swap) for each in plan.releases]
        _reroute(graph, plan)
        _draw(graph, plan)
    return made


def _check_names(graph: Any, plan: Plan) -> None:
    """Raise `CodeError` if a name is taken, before anything is made: the graph stays as it is."""
    taken = {op.name.lower() for op in graph.get_operations()}
    for name in sorted(plan.names):
        if name.lower() in taken:
            raise CodeError(f"the graph has an op {name!r} already: LMS edits a graph once")


def _swapped_out(graph: Any, out: SwapOut, swap: SwapOps) -> tuple[Any, Any]:
    tensor = graph.get_tensor_by_name(str(out.tensor))
    return tensor, _kept(swap.out(tensor, out.name), out.name)


def _swapped_in(back: SwapIn, tensor: Any, handle: Any, swap: SwapOps) -> Any:
    restored = _kept(swap.back(handle, back.name, tensor.dtype), back.name)
    restored.set_shape(tensor.shape)
    return restored.op


def _released(graph: Any, release: Release, swap: SwapOps) -> Any:
    if swap.release is None:
        raise CodeError(f"{release.name}: only the native ops on the CPU give memory back to the kernel")
    op = swap.release(graph.get_tensor_by_name(str(release.tensor)), release.name)
    op._set_attr(_KEEP, tf.compat.v1.AttrValue(b=True))
    return op


def _kept(output: Any, name: str) -> Any:
    if output.op.name != name:
        raise CodeError(f"the graph has an op {name!r} already: LMS edits a graph once")
    output.op._set_attr(_KEEP, tf.compat.v1.AttrValue(b=True))
    return output


def _copied(graph: Any, copy: Copy) -> Any:
    op = graph.get_operation_by_name(copy.op)
    inputs = [graph.get_tensor_by_name(str(use)) for use in copy.inputs]
    made = graph.create_op(
        op.type,
        inputs,
        [each.dtype for each in op.outputs],
        name=f"{copy.name}/",
        attrs=dict(op.node_def.attr),
        op_def=op.op_def,
    )
    for output, model in zip(made.outputs, op.outputs, strict=True):
        output.set_shape(model.shape)
    made._set_attr(_KEEP, tf.compat.v1.AttrValue(b=True))
    return made


def _reroute(graph: Any, plan: Plan) -> None:
    moved = [(slot, f"{back.name}:0") for back in plan.swap_ins for slot in back.consumers]
    moved += [(slot, f"{copy.name}:{number}") for copy in plan.copies for number, slot in copy.consumers]
    for slot, name in moved:
        graph.get_operation_by_name(slot.op)._update_input(slot.number, graph.get_tensor_by_name(name))


def _draw(graph: Any, plan: Plan) -> None:
    waits: dict[str, list[str]] = {}
    for first, then in plan.edges:
        waits.setdefault(then, []).append(first)
    for then, firsts in waits.items():
        op = graph.get_operation_by_name(then)
        there = {each.name for each in op.control_inputs}
        op._add_control_inputs([graph.get_operation_by_name(first) for first in firsts if first not in there])
