"""Graphs from TensorFlow's own: a `tf.Graph` or the graph of a function, and a GraphDef. Imports TensorFlow, late."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hpcckpt.errors import OptionError
from hpcckpt.lms.graph.graph import Graph, Op, Output, Use
from hpcckpt.lms.graph.levels import ENTER
from hpcckpt.lms.graph.while_frames import frames


def from_graph(graph: Any) -> Graph:
    """Read a `tf.Graph`, or the graph of a concrete function, as it is, with the shapes that TensorFlow inferred."""
    made = graph.get_operations()
    ops = {op.name: _op(op) for op in made}
    entered = {op.name: op.get_attr("frame_name").decode() for op in made if op.type in ENTER}
    frame = frames(ops, entered)
    return Graph.of(replace(op, frame=frame[name]) for name, op in ops.items())


def from_graph_def(graph_def: Any) -> Graph:
    """Read a GraphDef; its shapes are inferred.

    Raises
    ------
    OptionError
        TensorFlow cannot import it: an op that is not loaded, or an input that is not there.
    """
    import tensorflow as tf

    graph = tf.Graph()
    with graph.as_default():
        try:
            tf.graph_util.import_graph_def(graph_def, name="")
        except (ValueError, tf.errors.OpError) as error:
            raise OptionError(
                f"GraphDef of {len(graph_def.node)} nodes: TensorFlow cannot import it: {error}"
            ) from error
    return from_graph(graph)


def nbytes_learned(graph: Any) -> int:
    """Return the size of a `tf.Graph`'s trainable variables."""
    variables = {each.name: each for each in graph.get_collection("trainable_variables")}
    return sum(Output(_dtype(each), _shape(each)).nbytes() for each in variables.values())


def _op(op: Any) -> Op:
    return Op(
        name=op.name,
        type=op.type,
        device=op.device,
        inputs=tuple(Use(tensor.op.name, tensor.value_index) for tensor in op.inputs),
        controls=tuple(sorted({each.name for each in op.control_inputs})),
        outputs=tuple(Output(_dtype(tensor), _shape(tensor)) for tensor in op.outputs),
        is_stateful=bool(op.op_def is not None and op.op_def.is_stateful),
        is_training=bool(op.get_attr("is_training")) if op.type.startswith("FusedBatchNorm") else None,
    )


def _dtype(tensor: Any) -> str:
    return str(tensor.dtype.base_dtype.name)


def _shape(tensor: Any) -> tuple[int | None, ...] | None:
    return None if tensor.shape.rank is None else tuple(tensor.shape.as_list())
