"""The largest tensors of a step that does not fit: found by simulation, without running it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hpcckpt.lms.graph.graph_context import GraphContext
from hpcckpt.lms.graph.tf_import import from_graph
from hpcckpt.lms.planner.cost_planner import simulated
from hpcckpt.lms.planner.plan import Plan


@dataclass(frozen=True, slots=True)
class TensorSize:
    """A tensor ``op:number`` with its shape, where an unknown dimension is `None`, and its size in bytes."""

    name: str
    dtype: str
    shape: tuple[int | None, ...] | None
    nbytes: int


@dataclass(frozen=True, slots=True)
class LargestTensors:
    """The peak of a step in bytes, the op that runs then, and the largest of the tensors that exist then."""

    nbytes: int
    op: str
    tensors: tuple[TensorSize, ...]


def largest_tensors(graph: Any, n: int = 10, *, batch_size: int | None = None) -> LargestTensors:
    """Return the largest tensors that exist at the simulated peak of a graph. Independent.

    Nothing is run, so it also works for a step that does not fit into memory. The graph may be that of a session, or
    that of a function, ``step.get_concrete_function(...).graph``. Variables and fed batches are not counted.

    Parameters
    ----------
    graph : tf.Graph
        The graph of a whole step.
    n : int
        The largest number of tensors to return.
    batch_size : int, optional
        The size assumed for an unknown first dimension.

    Returns
    -------
    LargestTensors
        The peak, the op that runs then, and the tensors, the largest first.
    """
    context = GraphContext(from_graph(graph), batch_size=batch_size)
    live = simulated(context, Plan())
    tensors = []
    for buffer in live.live_at(live.peak_at)[:n]:
        output = context.graph.output(buffer.root)
        tensors.append(TensorSize(str(buffer.root), output.dtype, output.shape, buffer.nbytes))
    return LargestTensors(live.peak, live.order[live.peak_at] if live.order else "", tuple(tensors))
